"""The body of a feedback request, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nightschool.errors import InputError
from nightschool.types import FeedbackKind, Json, TargetKind

CLOCK_SKEW_S = 300.0
MAX_TEXT_CHARS = 65_536

Name = Annotated[str, Field(min_length=1, max_length=256)]


@dataclass(frozen=True, slots=True)
class NewFeedback:
    """Feedback as its sender gave it. `observed_at` and `key` are `None` where the sender gave none."""

    target_kind: TargetKind
    target_id: str
    kind: FeedbackKind
    value: Any
    name: str
    source: str = "end_user"
    author: str | None = None
    confidence: float | None = None
    observed_at: float | None = None
    key: str | None = None


class FeedbackBody(BaseModel):
    """What POST /v1/feedback takes: one target, one kind, its value; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)

    exchange: Name | None = None
    session: Name | None = None
    external_key: Name | None = None
    kind: Literal["number", "thumb", "text", "correction", "outcome"]
    value: Any
    name: Name | None = None
    source: Literal["end_user", "operator", "annotator", "code", "judge", "implicit"] = "end_user"
    author: Name | None = None
    confidence: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    observed_at: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] | None = None
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
        raise _wrong(f"{where}: {first['msg']}") from error
    named = [(kind, getattr(given, kind.value, None)) for kind in TargetKind]
    targets = [(kind, target) for kind, target in named if target is not None]
    if len(targets) != 1:
        raise _wrong(f"exactly one of exchange, session and external_key names the target, not {len(targets)}")
    if given.observed_at is not None and given.observed_at > now + CLOCK_SKEW_S:
        raise _wrong("observed_at lies in the future (it is in seconds since 1970, UTC)")
    kind = FeedbackKind(given.kind)
    return NewFeedback(
        target_kind=targets[0][0],
        target_id=targets[0][1],
        kind=kind,
        value=_value(kind, given.value),
        name=given.name or given.kind,
        source=given.source,
        author=given.author,
        confidence=given.confidence,
        observed_at=given.observed_at,
        key=given.idempotency_key,
    )


def _value(kind: FeedbackKind, value: Any) -> Any:
    """The value in its kind's own type. A number that is none (NaN, infinity) is refused, never stored."""
    if kind == FeedbackKind.NUMBER:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise _wrong("value: a number is a finite number")
        return value
    if kind == FeedbackKind.THUMB:
        thumb = {"up": True, "down": False}.get(value) if isinstance(value, str) else value
        if not isinstance(thumb, bool):
            raise _wrong('value: a thumb is true, false, "up" or "down"')
        return thumb
    if kind == FeedbackKind.TEXT:
        return _text(value)
    if kind == FeedbackKind.CORRECTION:
        return value if isinstance(value, dict) and value and _is_plain(value) else _text(value)
    if value is None or not _is_plain(value):
        raise _wrong("value: an outcome is a boolean, a finite number, a string or an object of those")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_TEXT_CHARS:
        raise _wrong(f"value: a text has 1 to {MAX_TEXT_CHARS} characters")
    return value


def _is_plain(value: Json | Any) -> bool:
    """Whether every number in `value` is finite."""
    if isinstance(value, dict):
        return all(_is_plain(item) for item in value.values())
    if isinstance(value, list):
        return all(_is_plain(item) for item in value)
    return not isinstance(value, float) or math.isfinite(value)


def _wrong(why: str) -> InputError:
    return InputError("The feedback was not taken.", f"{why[0].upper()}{why[1:]}.", "Correct it and send it again.")
