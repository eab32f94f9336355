"""The body of a feedback request, checked."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nightschool.feedback.values import NewFeedback, checked_scale, checked_value, is_plain, wrong
from nightschool.store.targets import LAST
from nightschool.types import FeedbackKind, TargetKind

CLOCK_SKEW_S = 300.0
NAMES = (TargetKind.EXCHANGE, TargetKind.SESSION, TargetKind.EXTERNAL_KEY)

Name = Annotated[str, Field(min_length=1, max_length=256)]
Position = Annotated[int, Field(ge=0, lt=10_000)]


class FeedbackBody(BaseModel):
    """What POST /v1/feedback takes: one target, one kind, its value; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)

    exchange: Name | None = None
    session: Name | None = None
    external_key: Name | None = None
    turn: Annotated[int, Field(ge=1, lt=100_000)] | Literal["last"] | None = None
    tool_call: Position | Name | None = None
    kind: Literal["number", "thumb", "category", "text", "correction", "preference", "outcome"]
    value: Any
    scale: Any = None
    name: Name | None = None
    source: Literal["end_user", "operator", "annotator", "code", "judge", "implicit"] = "end_user"
    author: Name | None = None
    confidence: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    observed_at: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] | None = None
    supersedes: Name | None = None
    evidence: Any = None
    idempotency_key: Name | None = None


def read_feedback(body: object, now: float) -> NewFeedback:
    """Check a parsed request body. The default `name` is the kind, so that a thumb and a text live together.

    Raises: InputError naming the first field that is wrong.
    """
    try:
        given = FeedbackBody.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the body"
        raise wrong(f"{where}: {first['msg']}") from error
    if given.observed_at is not None and given.observed_at > now + CLOCK_SKEW_S:
        raise wrong("observed_at lies in the future (it is in seconds since 1970, UTC)")
    if given.evidence is not None and not (isinstance(given.evidence, dict | str) and is_plain(given.evidence)):
        raise wrong("evidence: it is a text or an object")
    kind = FeedbackKind(given.kind)
    target_kind, target_id = _target(given)
    value = checked_value(kind, given.value)
    return NewFeedback(
        target_kind=target_kind,
        target_id=target_id,
        kind=kind,
        value=value,
        name=given.name or given.kind,
        source=given.source,
        author=given.author,
        confidence=given.confidence,
        observed_at=given.observed_at,
        key=given.idempotency_key,
        scale=checked_scale(kind, value, given.scale),
        turn=LAST if given.turn == "last" else given.turn,
        tool_call=given.tool_call,
        supersedes=given.supersedes,
        evidence=given.evidence,
    )


def _target(given: FeedbackBody) -> tuple[TargetKind, str]:
    named = [(kind, getattr(given, kind.value)) for kind in NAMES if getattr(given, kind.value) is not None]
    if len(named) != 1:
        raise wrong(f"exactly one of exchange, session and external_key names the target, not {len(named)}")
    kind, name = named[0]
    if given.turn is not None:
        if kind != TargetKind.SESSION:
            raise wrong("turn: it counts the turns of a `session`; an `exchange` is one turn by itself")
        kind = TargetKind.TURN
    if given.tool_call is not None:
        if kind not in (TargetKind.EXCHANGE, TargetKind.TURN):
            raise wrong("tool_call: it needs the `exchange`, or the `session` and the `turn`, that made the call")
        kind = TargetKind.TOOL_CALL
    return kind, name
