"""The tables of the first release."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    create_messages()
    create_sessions()
    create_exchanges()
    create_replies()
    create_runs()
    create_exams()
    create_releases()
    create_jobs()


def create_messages() -> None:
    op.create_table(
        "meta",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "key"),
    )
    op.create_table(
        "blobs",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "hash"),
    )
    op.create_table(
        "bodies",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.Column("segments", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "hash"),
    )
    op.create_table(
        "messages",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("parent_hash", sa.String()),
        sa.Column("depth", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("blob_hash", sa.String(), nullable=False),
        sa.Column("match_hash", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "hash"),
    )
    op.create_index("messages_parent", "messages", ["tenant", "parent_hash"])


def create_sessions() -> None:
    op.create_table(
        "sessions",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("principal", sa.String(), nullable=False),
        sa.Column("split", sa.String(), nullable=False),
        sa.Column("purpose", sa.String(), nullable=False),
        sa.Column("exam_id", sa.String()),
        sa.Column("external_key", sa.String()),
        sa.Column("preview", sa.String(), nullable=False),
        sa.Column("policy_version", sa.String(), nullable=False),
        sa.Column("num_exchanges", sa.Integer(), nullable=False),
        sa.Column("first_at", sa.Float(), nullable=False),
        sa.Column("last_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "id"),
    )
    op.create_index("sessions_exam", "sessions", ["tenant", "exam_id"])
    op.create_index("sessions_external", "sessions", ["tenant", "external_key"])
    op.create_index("sessions_recent", "sessions", ["tenant", "agent", "last_at"])


def create_exchanges() -> None:
    op.create_table(
        "exchanges",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("principal", sa.String(), nullable=False),
        sa.Column("split", sa.String(), nullable=False),
        sa.Column("purpose", sa.String(), nullable=False),
        sa.Column("exam_id", sa.String()),
        sa.Column("policy_version", sa.String(), nullable=False),
        sa.Column("dialect", sa.String(), nullable=False),
        sa.Column("streamed", sa.Boolean(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("http_status", sa.Integer()),
        sa.Column("error", sa.Text()),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("duration_ms", sa.Float()),
        sa.Column("first_byte_ms", sa.Float()),
        sa.Column("overhead_ms", sa.Float()),
        sa.Column("request_body", sa.String(), nullable=False),
        sa.Column("reply_body", sa.String()),
        sa.Column("tools_blob", sa.String()),
        sa.Column("prompt_message", sa.String()),
        sa.Column("reply_match_hash", sa.String()),
        sa.Column("parent_exchange_id", sa.String()),
        sa.Column("upstream_id", sa.String()),
        sa.Column("external_key", sa.String()),
        sa.Column("prompt_prefix_len", sa.Integer(), nullable=False),
        sa.Column("prompt_ids", sa.LargeBinary()),
        sa.Column("num_context_tokens", sa.Integer()),
        sa.Column("context_hash", sa.String()),
        sa.Column("num_prompt_tokens", sa.Integer()),
        sa.Column("num_sampled_tokens", sa.Integer()),
        sa.Column("fidelity", sa.String(), nullable=False),
        sa.Column("logprob_provenance", sa.String(), nullable=False),
        sa.Column("sampler", sa.JSON(), nullable=False),
        sa.Column("training_allowed", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "id"),
    )
    op.create_index("exchanges_external", "exchanges", ["tenant", "external_key"])
    op.create_index("exchanges_match", "exchanges", ["tenant", "reply_match_hash", "started_at"])
    op.create_index("exchanges_recent", "exchanges", ["tenant", "agent", "started_at"])
    op.create_index("exchanges_session", "exchanges", ["tenant", "session_id", "started_at"])
    op.create_index("exchanges_upstream", "exchanges", ["tenant", "upstream_id"])


def create_replies() -> None:
    op.create_table(
        "choices",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("exchange_id", sa.String(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("message_hash", sa.String()),
        sa.Column("finish_reason", sa.String()),
        sa.Column("completion_ids", sa.LargeBinary()),
        sa.Column("behavior_logprobs", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("tenant", "exchange_id", "index"),
    )
    op.create_table(
        "feedback",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("idempotency_key", sa.String(), nullable=False),
        sa.Column("target_kind", sa.String(), nullable=False),
        sa.Column("target_id", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("exchange_id", sa.String()),
        sa.Column("session_id", sa.String()),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("value", sa.JSON(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("author", sa.String()),
        sa.Column("confidence", sa.Float()),
        sa.Column("observed_at", sa.Float(), nullable=False),
        sa.Column("received_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "id"),
        sa.UniqueConstraint("tenant", "idempotency_key"),
    )
    op.create_index("feedback_parked", "feedback", ["tenant", "state", "target_id"])
    op.create_index("feedback_recent", "feedback", ["tenant", "received_at"])
    op.create_index("feedback_session", "feedback", ["tenant", "session_id"])


def create_runs() -> None:
    op.create_table(
        "datasets",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("objective", sa.String(), nullable=False),
        sa.Column("as_of", sa.Float(), nullable=False),
        sa.Column("num_samples", sa.Integer(), nullable=False),
        sa.Column("summary", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "digest"),
    )
    op.create_table(
        "ledger",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("exchange_id", sa.String(), nullable=False),
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("reward", sa.Float()),
        sa.Column("advantage", sa.Float()),
        sa.Column("weight", sa.Float()),
        sa.PrimaryKeyConstraint("tenant", "run_id", "exchange_id"),
    )
    op.create_index("ledger_exchange", "ledger", ["tenant", "exchange_id"])
    op.create_table(
        "runs",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("objective", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("dataset_digest", sa.String()),
        sa.Column("parent_digest", sa.String()),
        sa.Column("adapter_digest", sa.String()),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("summary", sa.JSON(), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("updated_at", sa.Float(), nullable=False),
        sa.Column("finished_at", sa.Float()),
        sa.PrimaryKeyConstraint("tenant", "id"),
    )
    op.create_index("runs_recent", "runs", ["tenant", "agent", "started_at"])
    op.create_table(
        "run_metrics",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("value", sa.Float()),
        sa.PrimaryKeyConstraint("tenant", "run_id", "name", "step"),
    )


def create_exams() -> None:
    op.create_table(
        "exams",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("candidate", sa.String(), nullable=False),
        sa.Column("incumbent", sa.String(), nullable=False),
        sa.Column("rule", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("opened_at", sa.Float(), nullable=False),
        sa.Column("closed_at", sa.Float()),
        sa.Column("verdict_id", sa.String()),
        sa.PrimaryKeyConstraint("tenant", "id"),
    )
    op.create_table(
        "verdicts",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("exam_id", sa.String()),
        sa.Column("candidate", sa.String(), nullable=False),
        sa.Column("incumbent", sa.String(), nullable=False),
        sa.Column("decision", sa.String(), nullable=False),
        sa.Column("sentence", sa.Text(), nullable=False),
        sa.Column("report", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "id"),
    )
    op.create_index("verdicts_candidate", "verdicts", ["tenant", "candidate"])


def create_releases() -> None:
    op.create_table(
        "adapters",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("parent_digest", sa.String()),
        sa.Column("run_id", sa.String()),
        sa.Column("manifest", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "digest"),
    )
    op.create_table(
        "releases",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("previous_digest", sa.String()),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("verdict_id", sa.String()),
        sa.Column("by", sa.String(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "id"),
    )
    op.create_index("releases_agent", "releases", ["tenant", "agent", "at"])
    op.create_table(
        "aliases",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("release_id", sa.String(), nullable=False),
        sa.Column("updated_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "agent"),
    )


def create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("idempotency_key", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("result", sa.JSON()),
        sa.Column("error", sa.Text()),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("owner", sa.String()),
        sa.Column("lease_until", sa.Float()),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("updated_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "id"),
        sa.UniqueConstraint("tenant", "idempotency_key"),
    )
