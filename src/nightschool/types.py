"""The values that flow through Nightschool, all frozen.

Identifiers are UUIDv7 strings, times are float seconds since the epoch (UTC), digests are lower-case
hex SHA-256. `None` means missing, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Json = dict[str, Any]


class Fidelity(StrEnum):
    """How far the stored token ids can be trusted (law 2)."""

    EXACT = "exact_tokens"
    VERIFIED = "retokenized_verified"
    TEXT = "text_only"


class Support(StrEnum):
    """How much of the model's distribution a sampler could draw from. Ratios need all of it (law 2)."""

    FULL = "full"
    GREEDY = "greedy decoding"
    CONSTRAINED = "constrained decoding"
    TRUNCATED = "truncated support"


# Flags of an exchange that bar it from training, or its tokens: `objectives.legality` says which.
MARKS = ("suspect_empty_args", "redacted", "redacted_reply")

# The API's mark for a log-probability that is not told; vLLM puts it where it has none, or minus infinity.
UNTOLD_LOGPROB = -9999.0


class LogprobProvenance(StrEnum):
    ENGINE = "engine"
    RECOMPUTED = "recomputed"
    NONE = "none"


class Split(StrEnum):
    """Where an exchange may be used, decided once by a keyed hash of its principal."""

    TRAIN = "train"
    SELECT = "select"
    GATE = "gate"


class Purpose(StrEnum):
    SERVE = "serve"
    EXAM = "exam"


class Branch(StrEnum):
    """What part of its session an exchange is. Feedback on a session speaks of `MAIN` alone."""

    MAIN = "main"
    RETRY = "retry"
    TITLE = "title"
    COMPACTION = "compaction"
    SUB_AGENT = "sub_agent"


class FeedbackKind(StrEnum):
    NUMBER = "number"
    THUMB = "thumb"
    CATEGORY = "category"
    TEXT = "text"
    CORRECTION = "correction"
    PREFERENCE = "preference"
    OUTCOME = "outcome"


class TargetKind(StrEnum):
    EXCHANGE = "exchange"
    TURN = "turn"
    TOOL_CALL = "tool_call"
    SESSION = "session"
    EXTERNAL_KEY = "external_key"


class LedgerState(StrEnum):
    """What became of an exchange in one run."""

    TRAINED = "trained"
    HELD = "held"
    EXCLUDED = "excluded"


class Decision(StrEnum):
    PROMOTE = "promote"
    REFUSE = "refuse"
    NEED_DATA = "need_data"


class Reading(StrEnum):
    """What an interval says about one suite (plus is good, `margin` is the allowed loss)."""

    BETTER = "better"
    NOT_WORSE = "not worse"
    WITHIN = "slightly worse, within margin"
    BEYOND = "worse beyond margin"
    WORSE = "worse"
    CANNOT_TELL = "cannot tell"
    NO_DATA = "not enough data"


@dataclass(frozen=True, slots=True)
class Sampler:
    """The distribution an engine drew from. `full_support` is False when it cut tokens off or bent it.

    `constraints` names the other request fields that shaped it (a grammar, a bias, ...), comma-separated.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    constraints: str | None = None

    @property
    def full_support(self) -> bool:
        return (
            self.temperature > 0
            and self.top_p >= 1.0
            and not self.top_k
            and not self.min_p
            and not self.presence_penalty
            and not self.frequency_penalty
            and not self.constraints
        )

    @property
    def support(self) -> Support:
        if self.temperature <= 0:
            return Support.GREEDY
        if self.constraints:
            return Support.CONSTRAINED
        return Support.FULL if self.full_support else Support.TRUNCATED


@dataclass(frozen=True, slots=True)
class Choice:
    """One reply of an exchange. `behavior_logprobs[t]` scores `completion_ids[t]` as sampled."""

    index: int
    message: Json
    finish_reason: str | None
    completion_ids: tuple[int, ...] | None = None
    behavior_logprobs: tuple[float | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class Exchange:
    """One model request and its whole reply, as the gateway saw it."""

    id: str
    tenant: str
    agent: str
    session_id: str
    principal: str
    split: Split
    purpose: Purpose
    policy_version: str
    started_at: float
    status: str
    messages: tuple[Json, ...]
    tools: tuple[Json, ...]
    choices: tuple[Choice, ...]
    prompt_ids: tuple[int, ...] | None
    fidelity: Fidelity
    logprob_provenance: LogprobProvenance
    sampler: Sampler
    upstream_id: str | None = None
    parent_exchange_id: str | None = None
    exam_id: str | None = None
    branch: Branch = Branch.MAIN
    fidelity_reason: str | None = None
    context_complete: bool = True
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Feedback:
    """An outside judgement. `value` is a number, a bool (thumb up), a text or a JSON object by kind.

    `scale` is (low, high) of a number. `turn` counts where a session's turn was named, `tool_call` is a position in
    the reply (`tool_call_id` the name its sender gave); `supersedes` is the id of the item that this one replaces.
    `origin` is the way it came: api, browser, webhook, otel, or an import's id; `key_id` the key that brought it.
    """

    id: str
    target_kind: TargetKind
    target_id: str
    kind: FeedbackKind
    value: Any
    name: str = "feedback"
    source: str = "end_user"
    author: str | None = None
    confidence: float | None = None
    observed_at: float | None = None
    received_at: float | None = None
    exchange_id: str | None = None
    session_id: str | None = None
    scale: tuple[float, float] | None = None
    turn: int | None = None
    tool_call: int | None = None
    tool_call_id: str | None = None
    supersedes: str | None = None
    origin: str = "api"
    key_id: str | None = None


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One branch of one session, root to leaf, with what was said about it.

    `token_ids`, `completion_mask` and `behavior_logprobs` are parallel (T,); the log-probability of a
    token that was not sampled is `None`. `request` is the first user message's text. `num_rows` trajectories share
    one judgement where the context was rewritten between two turns (`vote` is then the session). `rendered`: its tokens
    are not those that were sampled; they spell what was said in the template of the model that is trained.
    `truncated`: its last reply was cut off where the caller's limit lay.
    """

    session_id: str
    exchange_ids: tuple[str, ...]
    agent: str
    principal: str
    split: Split
    policy_versions: tuple[str, ...]
    token_ids: tuple[int, ...]
    completion_mask: tuple[bool, ...]
    behavior_logprobs: tuple[float | None, ...]
    request: str
    last_at: float
    sampler: Sampler
    feedback: tuple[Feedback, ...] = ()
    num_rows: int = 1
    rendered: bool = False
    truncated: bool = False

    @property
    def vote(self) -> tuple[str, ...]:
        """What the judgement is about, as a key."""
        return self.exchange_ids if self.num_rows == 1 else (self.session_id,)


@dataclass(frozen=True, slots=True)
class Sample:
    """What one training row carries. Parallel sequences have length T (prompt and completion).

    `loss_mask` is a subset of `completion_mask`. `annotations` holds per-sample scalars that an
    objective adds and its loss reads (`advantage`, `beta`, ...), `token_annotations` values per token,
    tuples (T,) with `None` for missing ones or arrays (T, K) (`behavior_logprobs` as the engine scored them, ...);
    `reference_logprobs` the anchor's per-token log-probabilities once computed. `term` names the loss of a
    mixed run that this row is for. Rows of one `group_id` share a batch.
    """

    id: str
    token_ids: tuple[int, ...]
    completion_mask: tuple[bool, ...]
    loss_mask: tuple[bool, ...]
    weight: float = 1.0
    reward: float | None = None
    policy_version: str | None = None
    group_id: str | None = None
    reference_logprobs: tuple[float | None, ...] | None = None
    annotations: dict[str, float] = field(default_factory=dict)
    token_annotations: dict[str, Any] = field(default_factory=dict)
    term: str = ""


@dataclass(frozen=True, slots=True)
class Suite:
    """One row of a verdict: candidate minus incumbent, in the suite's natural unit and sign.

    `fewer_is_better` says which way is good; `margin` is the loss that is allowed (>= 0). `two_sided` suites
    (reply length) may move by `margin` either way.
    """

    name: str
    unit: str
    num_pairs: int
    difference: float | None
    low: float | None
    high: float | None
    margin: float
    fewer_is_better: bool
    reading: Reading
    candidate: float | None = None
    incumbent: float | None = None
    needed: int | None = None
    must_improve: bool = False
    two_sided: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """The gate's decision about one candidate, with everything it rests on."""

    id: str
    agent: str
    candidate: str
    incumbent: str
    decision: Decision
    sentence: str
    suites: tuple[Suite, ...]
    rule: Json
    created_at: float
    exam_id: str | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """One move of an alias. `number` counts adapters of an agent (v1, v2, ...), not moves."""

    id: str
    agent: str
    number: int
    digest: str
    kind: str
    at: float
    by: str
    reason: str = ""
    previous_digest: str | None = None
    verdict_id: str | None = None
