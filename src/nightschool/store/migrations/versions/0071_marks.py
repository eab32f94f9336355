"""The flag that bars an exchange from training, where the ledger counts."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0071"
down_revision = "0010"

MARKS = ("suspect_empty_args", "redacted", "redacted_reply")


def upgrade() -> None:
    with op.batch_alter_table("exchanges") as table:
        table.add_column(sa.Column("mark", sa.String()))
    name_marks()
    op.drop_index("exchanges_session", "exchanges")
    op.create_index(
        "exchanges_session",
        "exchanges",
        [
            "tenant", "session_id", "started_at", "id", "agent", "status", "purpose", "split", "branch",
            "training_allowed", "context_complete", "fidelity", "support", "logprob_provenance", "mark",
        ],
    )  # fmt: skip


def name_marks() -> None:
    """Of the exchanges that are there already, by their flags; distinct ones are few."""
    table = sa.table("exchanges", sa.column("flags", sa.JSON), sa.column("mark", sa.String))
    written = sa.cast(table.c.flags, sa.Text)
    for text in op.get_bind().scalars(sa.select(written).where(written.is_not(None)).distinct()).all():
        mark = next((flag for flag in json.loads(text) or () if flag in MARKS), None)
        if mark is not None:
            op.execute(sa.update(table).where(written == text).values(mark=mark))
