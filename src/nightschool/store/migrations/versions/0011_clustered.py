"""Bodies and choices lie in the order of their keys: no index besides, which takes as much room as a small row.

A server's tables have no such order; nothing changes there.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0051"


def upgrade() -> None:
    if op.get_bind().dialect.name != "sqlite":
        return
    cluster(
        "bodies",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.Column("segments", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "hash"),
    )
    cluster(
        "choices",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("exchange_id", sa.String(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("message_hash", sa.LargeBinary()),
        sa.Column("finish_reason", sa.String()),
        sa.Column("completion_ids", sa.LargeBinary()),
        sa.Column("behavior_logprobs", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("tenant", "exchange_id", "index"),
    )


def cluster(name: str, *columns: sa.schema.SchemaItem) -> None:
    new = op.create_table(f"new_{name}", *columns, sqlite_with_rowid=False)
    old = sa.table(name, *(sa.column(column.name) for column in new.columns))
    rows = sa.select(*old.c).order_by(*(old.c[key.name] for key in new.primary_key.columns))
    op.get_bind().execute(sa.insert(new).from_select(list(new.columns.keys()), rows))
    op.drop_table(name)
    op.rename_table(f"new_{name}", name)
