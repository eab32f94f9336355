"""Indexes that give the newest of many sessions with one name, and of many failures with one prompt."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0040"


def upgrade() -> None:
    not_ok = sa.text("status <> 'ok'")
    op.drop_index("sessions_external", "sessions")
    op.create_index("sessions_external", "sessions", ["tenant", "external_key", "first_at"])
    op.drop_index("exchanges_failed", "exchanges")
    op.create_index(
        "exchanges_failed",
        "exchanges",
        ["tenant", "prompt_message", "started_at"],
        sqlite_where=not_ok,
        postgresql_where=not_ok,
    )
