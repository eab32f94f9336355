"""What removed exchanges referred to is written down, so that an interrupted clean-up goes on where it stopped."""

import sqlalchemy as sa
from alembic import op

revision = "0051"
down_revision = "0072"


def upgrade() -> None:
    op.create_table(
        "orphans",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "kind", "hash"),
    )
