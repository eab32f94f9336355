"""Feedback on turns and tool calls, and a time after which parked feedback is no longer waited for."""

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0071"


def upgrade() -> None:
    with op.batch_alter_table("feedback") as table:
        table.add_column(sa.Column("tool_call", sa.Integer()))
        table.add_column(sa.Column("turn", sa.Integer()))
        table.add_column(sa.Column("expires_at", sa.Float()))
    op.create_index("feedback_supersedes", "feedback", ["tenant", "supersedes"])
