"""Reward audits: what an agent's rewards were measured to be worth."""

import sqlalchemy as sa
from alembic import op

revision = "0090"
down_revision = "0080"


def upgrade() -> None:
    op.create_table(
        "audits",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("made_at", sa.Float(), nullable=False),
        sa.Column("passed", sa.Boolean(), nullable=False),
        sa.Column("report", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "id"),
    )
    op.create_index("audits_recent", "audits", ["tenant", "agent", "made_at"])
