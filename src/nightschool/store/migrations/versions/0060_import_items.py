"""What was taken of the files of other tools, conversation by conversation."""

import sqlalchemy as sa
from alembic import op

revision = "0060"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "import_items",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("import_id", sa.String(), nullable=False),
        sa.Column("place", sa.String(), nullable=False),
        sa.Column("session_id", sa.String()),
        sa.Column("raw", sa.LargeBinary(), nullable=False),
        sa.Column("leaf", sa.String()),
        sa.PrimaryKeyConstraint("tenant", "digest"),
    )
    op.create_index("import_items_session", "import_items", ["tenant", "session_id"])
