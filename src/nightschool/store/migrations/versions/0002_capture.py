"""What capture in three dialects, from many keys and from other tools' logs adds to the tables."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    extend_exchanges()
    extend_sessions()
    extend_feedback()
    create_keys()
    create_audit()
    create_imports()


def extend_exchanges() -> None:
    with op.batch_alter_table("exchanges") as table:
        table.add_column(sa.Column("branch", sa.String(), nullable=False, server_default="main"))
        table.add_column(sa.Column("retry_of", sa.String()))
        table.add_column(sa.Column("fidelity_reason", sa.Text()))
        table.add_column(sa.Column("context_complete", sa.Boolean(), nullable=False, server_default=sa.true()))
        table.add_column(sa.Column("flags", sa.JSON()))
        table.add_column(sa.Column("usage", sa.JSON()))
        table.add_column(sa.Column("key_id", sa.String()))
        table.add_column(sa.Column("origin", sa.String(), nullable=False, server_default="gateway"))


def extend_sessions() -> None:
    with op.batch_alter_table("sessions") as table:
        table.add_column(sa.Column("parent_session_id", sa.String()))
        table.add_column(sa.Column("tags", sa.JSON()))
        table.add_column(sa.Column("origin", sa.String(), nullable=False, server_default="gateway"))


def extend_feedback() -> None:
    with op.batch_alter_table("feedback") as table:
        table.add_column(sa.Column("scale", sa.JSON()))
        table.add_column(sa.Column("tool_call_id", sa.String()))
        table.add_column(sa.Column("supersedes", sa.String()))
        table.add_column(sa.Column("evidence", sa.JSON()))
        table.add_column(sa.Column("key_id", sa.String()))
        table.add_column(sa.Column("origin", sa.String(), nullable=False, server_default="api"))


def create_keys() -> None:
    op.create_table(
        "keys",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("training", sa.String(), nullable=False),
        sa.Column("rate_per_minute", sa.Integer()),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("revoked_at", sa.Float()),
        sa.PrimaryKeyConstraint("tenant", "id"),
    )
    op.create_index("keys_hash", "keys", ["hash"], unique=True)


def create_audit() -> None:
    op.create_table(
        "audit",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("by", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.Column("previous_hash", sa.String()),
        sa.Column("hash", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "id"),
    )


def create_imports() -> None:
    op.create_table(
        "imports",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("format", sa.String(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("report", sa.JSON(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "id"),
    )
