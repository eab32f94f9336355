"""The tables, as SQLAlchemy Core sees them. Migrations under `store/migrations` create them.

Tenant is part of every key and every query. Blobs and messages are stored once, by hash. Token ids are
little-endian int32, log-probabilities little-endian float32 (NaN where the engine gave none).
"""

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
    true,
)
from sqlalchemy.types import JSON

from nightschool.store.columns import Digest, Packed, metadata

# In words, not bound: only so do the databases see that a query may use the index on it.
NOT_OK = text("status <> 'ok'")

HAS_UPSTREAM, HAS_EXTERNAL = text("upstream_id IS NOT NULL"), text("external_key IS NOT NULL")

# Values of one installation: schema of the data, key of the split hash.
meta = Table(
    "meta",
    metadata,
    Column("tenant", String, nullable=False),
    Column("key", String, nullable=False),
    Column("value", Text, nullable=False),
    PrimaryKeyConstraint("tenant", "key"),
)

# Bytes by SHA-256.
blobs = Table(
    "blobs",
    metadata,
    Column("tenant", String, nullable=False),
    Column("hash", Digest, nullable=False),
    Column("data", Packed, nullable=False),
    PrimaryKeyConstraint("tenant", "hash"),
)

# A raw request or reply body: literal text and references to branches and blobs, in order.
bodies = Table(
    "bodies",
    metadata,
    Column("tenant", String, nullable=False),
    Column("hash", Digest, nullable=False),
    Column("size_bytes", Integer, nullable=False),
    Column("segments", Packed, nullable=False),
    PrimaryKeyConstraint("tenant", "hash"),
    sqlite_with_rowid=False,
)

# The message tree. `hash` covers tenant, parent and exact content; `match_hash` covers what survives a
# client's re-serialization (role, text, tool calls), rolled from the root. The content is here, or a blob.
messages = Table(
    "messages",
    metadata,
    Column("tenant", String, nullable=False),
    Column("hash", Digest, nullable=False),
    Column("parent_hash", Digest),
    Column("depth", Integer, nullable=False),
    Column("role", String, nullable=False),
    Column("match_hash", Digest, nullable=False),
    Column("content", Packed),
    Column("blob_hash", Digest),
    PrimaryKeyConstraint("tenant", "hash"),
)

# The same message as other bodies spelled it: `variant` counts from 1, 0 is the content above.
spellings = Table(
    "spellings",
    metadata,
    Column("tenant", String, nullable=False),
    Column("message_hash", Digest, nullable=False),
    Column("variant", Integer, nullable=False),
    Column("data", Packed, nullable=False),
    PrimaryKeyConstraint("tenant", "message_hash", "variant"),
)

# What removed exchanges referred to, until it is known whether anything else does. `kind`: body | message | blob.
orphans = Table(
    "orphans",
    metadata,
    Column("tenant", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("hash", Digest, nullable=False),
    PrimaryKeyConstraint("tenant", "kind", "hash"),
)

sessions = Table(
    "sessions",
    metadata,
    Column("tenant", String, nullable=False),
    Column("id", String, nullable=False),
    Column("agent", String, nullable=False),
    Column("principal", String, nullable=False),
    Column("split", String, nullable=False),
    Column("purpose", String, nullable=False),
    Column("exam_id", String),
    Column("external_key", String),
    Column("preview", String, nullable=False),
    Column("policy_version", String, nullable=False),
    Column("num_exchanges", Integer, nullable=False),
    Column("first_at", Float, nullable=False),
    Column("last_at", Float, nullable=False),
    Column("parent_session_id", String),
    Column("tags", JSON),
    Column("origin", String, nullable=False, server_default="gateway"),
    Column("opening", String),  # how its main branch began: store.dialogue; null while there is none
    PrimaryKeyConstraint("tenant", "id"),
    Index("sessions_recent", "tenant", "agent", "last_at"),
    Index("sessions_external", "tenant", "external_key", "first_at"),
    Index("sessions_exam", "tenant", "exam_id"),
    Index("sessions_parent", "tenant", "parent_session_id"),
)

exchanges = Table(
    "exchanges",
    metadata,
    Column("tenant", String, nullable=False),
    Column("id", String, nullable=False),
    Column("agent", String, nullable=False),
    Column("session_id", String, nullable=False),
    Column("principal", String, nullable=False),
    Column("split", String, nullable=False),
    Column("purpose", String, nullable=False),
    Column("exam_id", String),
    Column("policy_version", String, nullable=False),
    Column("dialect", String, nullable=False),
    Column("streamed", Boolean, nullable=False),
    Column("status", String, nullable=False),  # ok | error | aborted
    Column("http_status", Integer),
    Column("error", Text),
    Column("started_at", Float, nullable=False),
    Column("duration_ms", Float),
    Column("first_byte_ms", Float),
    Column("overhead_ms", Float),
    Column("request_body", Digest, nullable=False),
    Column("reply_body", Digest),
    Column("tools_blob", Digest),
    Column("prompt_message", Digest),
    Column("reply_match_hash", Digest),  # the dialogue with its reply, as it comes back in a history
    Column("system_hash", String, nullable=False, server_default=""),  # the system messages before the dialogue
    Column("parent_exchange_id", String),
    Column("upstream_id", String),
    Column("external_key", String),
    # An exchange's context is its prompt ids followed by the completion of its choice 0. Prompt ids are a
    # delta: the first `prompt_prefix_len` ids are the context of the parent exchange.
    Column("prompt_prefix_len", Integer, nullable=False),
    Column("prompt_ids", LargeBinary),
    Column("num_context_tokens", Integer),
    Column("context_hash", Digest),
    Column("num_prompt_tokens", Integer),
    Column("num_sampled_tokens", Integer),
    Column("fidelity", String, nullable=False),
    Column("logprob_provenance", String, nullable=False),
    Column("sampler", JSON, nullable=False),
    Column("support", String, nullable=False, server_default="full"),  # types.Support of the sampler
    Column("training_allowed", Boolean, nullable=False),
    Column("branch", String, nullable=False, server_default="main"),  # types.Branch
    Column("retry_of", String),  # the exchange that this one repeats
    Column("fidelity_reason", Text),  # why the fidelity is below exact_tokens
    Column("context_complete", Boolean, nullable=False, server_default=true()),
    Column("flags", JSON),  # names of what is odd about it: suspect_empty_args, redacted, ...
    Column("mark", String),  # the first of its flags that is one of types.MARKS
    Column("usage", JSON),  # tokens as the upstream counted them
    Column("key_id", String),
    Column("origin", String, nullable=False, server_default="gateway"),  # gateway, or the import's id
    PrimaryKeyConstraint("tenant", "id"),
    # All that the ledger counts by: it reads this index alone, newest sessions first.
    Index(
        "exchanges_session",
        "tenant",
        "session_id",
        "started_at",
        "id",
        "agent",
        "status",
        "purpose",
        "split",
        "branch",
        "training_allowed",
        "context_complete",
        "fidelity",
        "support",
        "logprob_provenance",
        "mark",
    ),
    Index("exchanges_match", "tenant", "reply_match_hash", "system_hash", "started_at"),
    Index(
        "exchanges_failed", "tenant", "prompt_message", "started_at", sqlite_where=NOT_OK, postgresql_where=NOT_OK
    ),  # what may be retried
    Index("exchanges_upstream", "tenant", "upstream_id", sqlite_where=HAS_UPSTREAM, postgresql_where=HAS_UPSTREAM),
    Index("exchanges_external", "tenant", "external_key", sqlite_where=HAS_EXTERNAL, postgresql_where=HAS_EXTERNAL),
    Index("exchanges_recent", "tenant", "agent", "started_at"),
)

choices = Table(
    "choices",
    metadata,
    Column("tenant", String, nullable=False),
    Column("exchange_id", String, nullable=False),
    Column("index", Integer, nullable=False),
    Column("message_hash", Digest),
    Column("finish_reason", String),
    Column("completion_ids", LargeBinary),
    Column("behavior_logprobs", LargeBinary),
    PrimaryKeyConstraint("tenant", "exchange_id", "index"),
    sqlite_with_rowid=False,
)

# Append-only. `state`: matched (target found), parked (not yet), refused (an exam's).
# `turn` counts the turns of a session that is named, -1 is its newest; `tool_call` is a position in the reply,
# `tool_call_id` the name its sender gave. Beyond `expires_at` a parked row is not waited for.
feedback = Table(
    "feedback",
    metadata,
    Column("tenant", String, nullable=False),
    Column("id", String, nullable=False),
    Column("idempotency_key", String, nullable=False),
    Column("target_kind", String, nullable=False),
    Column("target_id", String, nullable=False),
    Column("state", String, nullable=False),
    Column("exchange_id", String),
    Column("session_id", String),
    Column("name", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("value", JSON, nullable=False),
    Column("source", String, nullable=False),
    Column("author", String),
    Column("confidence", Float),
    Column("observed_at", Float, nullable=False),
    Column("received_at", Float, nullable=False),
    Column("scale", JSON),  # [low, high] of a number
    Column("tool_call_id", String),
    Column("tool_call", Integer),
    Column("turn", Integer),
    Column("expires_at", Float),
    Column("supersedes", String),
    Column("evidence", JSON),
    Column("key_id", String),
    Column("origin", String, nullable=False, server_default="api"),  # api, browser, webhook, otel, or the import's id
    PrimaryKeyConstraint("tenant", "id"),
    UniqueConstraint("tenant", "idempotency_key"),
    Index("feedback_session", "tenant", "session_id", "state", "kind", "exchange_id"),
    Index("feedback_parked", "tenant", "state", "target_id"),
    Index("feedback_recent", "tenant", "received_at"),
    Index("feedback_supersedes", "tenant", "supersedes"),
)

# What an agent's rewards were measured to be worth (curation.audit); the newest counts.
audits = Table(
    "audits",
    metadata,
    Column("tenant", String, nullable=False),
    Column("id", String, nullable=False),
    Column("agent", String, nullable=False),
    Column("made_at", Float, nullable=False),
    Column("passed", Boolean, nullable=False),
    Column("report", JSON, nullable=False),
    PrimaryKeyConstraint("tenant", "id"),
    Index("audits_recent", "tenant", "agent", "made_at"),
)

datasets = Table(
    "datasets",
    metadata,
    Column("tenant", String, nullable=False),
    Column("digest", String, nullable=False),
    Column("agent", String, nullable=False),
    Column("objective", String, nullable=False),
    Column("as_of", Float, nullable=False),
    Column("num_samples", Integer, nullable=False),
    Column("summary", JSON, nullable=False),
    Column("created_at", Float, nullable=False),
    PrimaryKeyConstraint("tenant", "digest"),
)

# One line per exchange and run: trained, held or excluded, and why.
ledger = Table(
    "ledger",
    metadata,
    Column("tenant", String, nullable=False),
    Column("run_id", String, nullable=False),
    Column("exchange_id", String, nullable=False),
    Column("session_id", String, nullable=False),
    Column("state", String, nullable=False),
    Column("reason", String, nullable=False),
    Column("reward", Float),
    Column("advantage", Float),
    Column("weight", Float),
    PrimaryKeyConstraint("tenant", "run_id", "exchange_id"),
    Index("ledger_exchange", "tenant", "exchange_id", "run_id", "state", "reason", "session_id"),
)

runs = Table(
    "runs",
    metadata,
    Column("tenant", String, nullable=False),
    Column("id", String, nullable=False),
    Column("agent", String, nullable=False),
    Column("objective", String, nullable=False),
    Column("state", String, nullable=False),  # running | interrupted | failed | done
    Column("dataset_digest", String),
    Column("parent_digest", String),
    Column("adapter_digest", String),
    Column("config", JSON, nullable=False),
    Column("summary", JSON, nullable=False),
    Column("error", Text),
    Column("started_at", Float, nullable=False),
    Column("updated_at", Float, nullable=False),
    Column("finished_at", Float),
    PrimaryKeyConstraint("tenant", "id"),
    Index("runs_recent", "tenant", "agent", "started_at"),
)

run_metrics = Table(
    "run_metrics",
    metadata,
    Column("tenant", String, nullable=False),
    Column("run_id", String, nullable=False),
    Column("name", String, nullable=False),
    Column("step", Integer, nullable=False),
    Column("value", Float),
    PrimaryKeyConstraint("tenant", "run_id", "name", "step"),
)

adapters = Table(
    "adapters",
    metadata,
    Column("tenant", String, nullable=False),
    Column("digest", String, nullable=False),
    Column("agent", String, nullable=False),
    Column("parent_digest", String),
    Column("run_id", String),
    Column("manifest", JSON, nullable=False),
    Column("created_at", Float, nullable=False),
    PrimaryKeyConstraint("tenant", "digest"),
)

exams = Table(
    "exams",
    metadata,
    Column("tenant", String, nullable=False),
    Column("id", String, nullable=False),
    Column("agent", String, nullable=False),
    Column("candidate", String, nullable=False),
    Column("incumbent", String, nullable=False),
    Column("rule", JSON, nullable=False),
    Column("state", String, nullable=False),  # open | closed
    Column("opened_at", Float, nullable=False),
    Column("closed_at", Float),
    Column("verdict_id", String),
    PrimaryKeyConstraint("tenant", "id"),
)

verdicts = Table(
    "verdicts",
    metadata,
    Column("tenant", String, nullable=False),
    Column("id", String, nullable=False),
    Column("agent", String, nullable=False),
    Column("exam_id", String),
    Column("candidate", String, nullable=False),
    Column("incumbent", String, nullable=False),
    Column("decision", String, nullable=False),
    Column("sentence", Text, nullable=False),
    Column("report", JSON, nullable=False),
    Column("created_at", Float, nullable=False),
    PrimaryKeyConstraint("tenant", "id"),
    Index("verdicts_candidate", "tenant", "candidate"),
)

# Moves of an alias, append-only. The newest row of an agent equals its alias row.
releases = Table(
    "releases",
    metadata,
    Column("tenant", String, nullable=False),
    Column("id", String, nullable=False),
    Column("agent", String, nullable=False),
    Column("number", Integer, nullable=False),
    Column("digest", String, nullable=False),
    Column("previous_digest", String),
    Column("kind", String, nullable=False),  # first | promote | override | roll_back
    Column("verdict_id", String),
    Column("by", String, nullable=False),
    Column("reason", Text, nullable=False),
    Column("at", Float, nullable=False),
    PrimaryKeyConstraint("tenant", "id"),
    Index("releases_agent", "tenant", "agent", "at"),
)

aliases = Table(
    "aliases",
    metadata,
    Column("tenant", String, nullable=False),
    Column("agent", String, nullable=False),
    Column("digest", String, nullable=False),
    Column("release_id", String, nullable=False),
    Column("updated_at", Float, nullable=False),
    PrimaryKeyConstraint("tenant", "agent"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("tenant", String, nullable=False),
    Column("id", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("idempotency_key", String, nullable=False),
    Column("state", String, nullable=False),  # queued | running | done | failed
    Column("payload", JSON, nullable=False),
    Column("result", JSON),
    Column("error", Text),
    Column("attempts", Integer, nullable=False),
    Column("owner", String),
    Column("lease_until", Float),
    Column("created_at", Float, nullable=False),
    Column("updated_at", Float, nullable=False),
    PrimaryKeyConstraint("tenant", "id"),
    UniqueConstraint("tenant", "idempotency_key"),
)

# Keys of agents and people, as keyed hashes. `role`: data | feedback | admin. `training`: default | allow | deny.
keys = Table(
    "keys",
    metadata,
    Column("tenant", String, nullable=False),
    Column("id", String, nullable=False),
    Column("name", String, nullable=False),
    Column("role", String, nullable=False),
    Column("hash", String, nullable=False),
    Column("training", String, nullable=False),
    Column("rate_per_minute", Integer),
    Column("created_at", Float, nullable=False),
    Column("revoked_at", Float),
    PrimaryKeyConstraint("tenant", "id"),
    Index("keys_hash", "hash", unique=True),
)

# What administrators did, append-only; each row's hash covers the one before it.
audit = Table(
    "audit",
    metadata,
    Column("tenant", String, nullable=False),
    Column("id", String, nullable=False),
    Column("at", Float, nullable=False),
    Column("by", String, nullable=False),
    Column("action", String, nullable=False),
    Column("detail", JSON, nullable=False),
    Column("previous_hash", String),  # empty: the first of its tenant
    Column("hash", String, nullable=False),
    PrimaryKeyConstraint("tenant", "id"),
    Index("audit_chain", "tenant", "previous_hash", unique=True),
)

# Files of other tools that were taken in, each with its report.
imports = Table(
    "imports",
    metadata,
    Column("tenant", String, nullable=False),
    Column("id", String, nullable=False),
    Column("format", String, nullable=False),
    Column("source", String, nullable=False),
    Column("digest", String, nullable=False),
    Column("report", JSON, nullable=False),
    Column("at", Float, nullable=False),
    PrimaryKeyConstraint("tenant", "id"),
)

# What was taken of such a file, one row a conversation: the log's own bytes, and the last message of it.
import_items = Table(
    "import_items",
    metadata,
    Column("tenant", String, nullable=False),
    Column("digest", String, nullable=False),
    Column("key", String, nullable=False),
    Column("import_id", String, nullable=False),
    Column("place", String, nullable=False),
    Column("session_id", String),
    Column("raw", LargeBinary, nullable=False),  # zlib
    Column("leaf", String),
    PrimaryKeyConstraint("tenant", "digest"),
    Index("import_items_session", "tenant", "session_id"),
)
