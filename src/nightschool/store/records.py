"""What the gateway hands over: one exchange as it saw it, before the store decides anything."""

from __future__ import annotations

from dataclasses import dataclass, field

from nightschool.types import Branch, Choice, Fidelity, Json, LogprobProvenance, Purpose, Sampler


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asked, as the request said it. Nothing here is inferred; the store decides.

    `agent` is the alias asked for (without `@digest`). `session` is the name its client gave the conversation,
    `session_hint` one that other conversations may carry too, or that is new with every request (a cache key, a
    trace). `header_user` and `external_key` are the X-Nightschool headers, `body_user` is the body's `user`; `None`
    where absent. `parent_session` is the session a sub-agent works for, `previous_response` the id of the reply
    that the request continues by name. `branch` is what the request says it is, `is_retry` that it says it was sent
    before. `training_allowed` is False when the request, its key or the installation denied it.
    """

    agent: str
    session: str | None = None
    header_user: str | None = None
    body_user: str | None = None
    external_key: str | None = None
    purpose: Purpose = Purpose.SERVE
    exam_id: str | None = None
    training_allowed: bool = True
    key_id: str | None = None
    tags: tuple[str, ...] = ()
    parent_session: str | None = None
    previous_response: str | None = None
    session_hint: str | None = None
    branch: Branch | None = None
    is_retry: bool = False


@dataclass(frozen=True, slots=True)
class Timing:
    """When the request came, in seconds since the epoch, and what then took how many milliseconds."""

    started_at: float
    duration_ms: float | None = None
    first_byte_ms: float | None = None
    overhead_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """Everything the gateway saw of one exchange: the raw bytes, and the parsed copy of them.

    `id` is the gateway's (`new_id()`), since the reply's header carries it. `request_body` is as the client
    sent it; `reply_body` as the upstream sent it (a stream: its SSE bytes), `None` when there was none.
    `messages` and `tools` are the request's, `()` when it could not be read; `choices` the replies, in
    order, with ids and log-probabilities where the engine gave them; `prompt_ids` likewise. `status` is ok,
    error or aborted (client or engine went away before the end); whatever arrived before is kept.
    """

    id: str
    caller: Caller
    timing: Timing
    policy_version: str
    request_body: bytes
    reply_body: bytes | None = None
    messages: tuple[Json, ...] = ()
    tools: tuple[Json, ...] = ()
    choices: tuple[Choice, ...] = ()
    prompt_ids: tuple[int, ...] | None = None
    fidelity: Fidelity = Fidelity.TEXT
    logprob_provenance: LogprobProvenance = LogprobProvenance.NONE
    sampler: Sampler = field(default_factory=Sampler)
    dialect: str = "openai.chat"
    streamed: bool = False
    status: str = "ok"
    http_status: int | None = 200
    error: str | None = None
    upstream_id: str | None = None
    branch: Branch | None = None  # `None`: the caller says, or the store decides
    fidelity_reason: str | None = None
    context_complete: bool = True
    flags: tuple[str, ...] = ()
    usage: Json | None = None
    origin: str = "gateway"
