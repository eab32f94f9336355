"""What finds an exchange's place: the dialogue apart from its system message, and attempts that failed."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0050"


def upgrade() -> None:
    not_ok = sa.text("status <> 'ok'")
    with op.batch_alter_table("exchanges") as table:
        table.add_column(sa.Column("system_hash", sa.String(), nullable=False, server_default=""))
    with op.batch_alter_table("sessions") as table:
        table.add_column(sa.Column("opening", sa.String()))
    op.drop_index("exchanges_match", "exchanges")
    op.create_index("exchanges_match", "exchanges", ["tenant", "reply_match_hash", "system_hash", "started_at"])
    op.create_index(
        "exchanges_failed",
        "exchanges",
        ["tenant", "prompt_message"],
        sqlite_where=not_ok,
        postgresql_where=not_ok,
    )
