"""What the ledger counts by, where one index holds all of it; lines of one exchange beside each other."""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0070"
down_revision = "0020"


def upgrade() -> None:
    with op.batch_alter_table("exchanges") as table:
        table.add_column(sa.Column("support", sa.String(), nullable=False, server_default="full"))
    name_supports()
    op.drop_index("exchanges_session", "exchanges")
    op.create_index(
        "exchanges_session",
        "exchanges",
        [
            "tenant", "session_id", "started_at", "id", "agent", "status", "purpose", "split", "branch",
            "training_allowed", "context_complete", "fidelity", "support", "logprob_provenance",
        ],
    )  # fmt: skip
    op.create_index("sessions_parent", "sessions", ["tenant", "parent_session_id"])
    op.drop_index("feedback_session", "feedback")
    op.create_index("feedback_session", "feedback", ["tenant", "session_id", "exchange_id", "state", "kind"])
    op.drop_index("ledger_exchange", "ledger")
    op.create_index("ledger_exchange", "ledger", ["tenant", "exchange_id", "run_id", "state", "reason", "session_id"])


def name_supports() -> None:
    """Of the exchanges that are there already, by their sampler; distinct ones are few."""
    table = sa.table("exchanges", sa.column("sampler", sa.JSON), sa.column("support", sa.String))
    written = sa.cast(table.c.sampler, sa.Text)
    for text in op.get_bind().scalars(sa.select(written).distinct()).all():
        support = support_of(json.loads(text))
        if support != "full":
            op.execute(sa.update(table).where(written == text).values(support=support))


def support_of(sampler: dict[str, Any]) -> str:
    if sampler["temperature"] <= 0:
        return "greedy decoding"
    if sampler.get("constraints"):
        return "constrained decoding"
    bends = ("top_k", "min_p", "presence_penalty", "frequency_penalty")
    cut = sampler.get("top_p", 1.0) < 1.0 or any(sampler.get(name) for name in bends)
    return "truncated support" if cut else "full"
