"""The audit log takes new entries only: a chain without forks, whose rows nobody changes or removes."""

import sqlalchemy as sa
from alembic import op

revision = "0050"
down_revision = "0060"

FORBIDDEN = ("update", "delete")


def upgrade() -> None:
    op.create_index("audit_chain", "audit", ["tenant", "previous_hash"], unique=True)
    on_postgres = op.get_bind().dialect.name == "postgresql"
    if on_postgres:
        op.execute(
            sa.text(
                "CREATE FUNCTION audit_is_append_only() RETURNS trigger AS "
                "'BEGIN RAISE EXCEPTION ''the audit log is append-only''; END' LANGUAGE plpgsql"
            )
        )
    for act in FORBIDDEN:
        refuse = "EXECUTE FUNCTION audit_is_append_only()"
        if not on_postgres:
            refuse = "BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END"
        op.execute(sa.text(f"CREATE TRIGGER audit_no_{act} BEFORE {act.upper()} ON audit FOR EACH ROW {refuse}"))
