"""What readers made of texts: polarity, wish, target and hint, by reader and its version."""

import sqlalchemy as sa
from alembic import op

revision = "0080"
down_revision = "0011"


def upgrade() -> None:
    op.create_table(
        "readings",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("feedback_id", sa.String(), nullable=False),
        sa.Column("reader", sa.String(), nullable=False),
        sa.Column("polarity", sa.String(), nullable=False),
        sa.Column("score", sa.Float()),
        sa.Column("wish", sa.Text()),
        sa.Column("hint", sa.Text()),
        sa.Column("exchange_id", sa.String()),
        sa.Column("turn", sa.Integer()),
        sa.Column("notes", sa.JSON(), nullable=False),
        sa.Column("votes", sa.JSON(), nullable=False),
        sa.Column("made", sa.JSON(), nullable=False),
        sa.Column("read_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "feedback_id", "reader"),
    )
    op.create_index("readings_reader", "readings", ["tenant", "reader", "read_at"])
