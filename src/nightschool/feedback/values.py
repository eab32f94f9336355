"""A judgement as its sender gave it, and what each kind of value must be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from nightschool.errors import InputError
from nightschool.store.targets import Target
from nightschool.types import FeedbackKind, Json, TargetKind

MAX_TEXT_CHARS = 65_536
MAX_CATEGORY_CHARS = 256
IMPLICIT = "implicit"  # the source of what nobody said on purpose
THUMBS = {"up": True, "down": False}


@dataclass(frozen=True, slots=True)
class NewFeedback:
    """Feedback as its sender gave it; `None` where it gave nothing.

    `turn` and `tool_call` narrow the target (see `store.targets.Target`); `supersedes` is the id of a former item.
    `evidence` is whatever the judgement rests on. `origin` says by which way it came, `key_id` with whose key.
    """

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
    scale: tuple[float, float] | None = None
    turn: int | None = None
    tool_call: int | str | None = None
    supersedes: str | None = None
    evidence: Json | str | None = None
    origin: str = "api"
    key_id: str | None = None

    @property
    def target(self) -> Target:
        return Target(self.target_kind, self.target_id, self.turn, self.tool_call)


def checked_value(kind: FeedbackKind, value: Any) -> Any:
    """The value in its kind's own type. A number that is none (NaN, infinity) is refused, never stored.

    Raises: InputError.
    """
    if kind == FeedbackKind.NUMBER:
        if not _is_number(value):
            raise wrong("value: a number is a finite number")
        return value
    if kind == FeedbackKind.THUMB:
        thumb = THUMBS.get(value) if isinstance(value, str) else value
        if not isinstance(thumb, bool):
            raise wrong('value: a thumb is true, false, "up" or "down"')
        return thumb
    if kind == FeedbackKind.CATEGORY:
        if not isinstance(value, str) or not value.strip() or len(value) > MAX_CATEGORY_CHARS:
            raise wrong(f"value: a category is a text of 1 to {MAX_CATEGORY_CHARS} characters")
        return value
    if kind == FeedbackKind.TEXT:
        return _text(value)
    if kind == FeedbackKind.CORRECTION:
        return value if isinstance(value, dict) and value and is_plain(value) else _text(value)
    if kind == FeedbackKind.PREFERENCE:
        return _preference(value)
    if value is None or not is_plain(value):
        raise wrong("value: an outcome is a boolean, a finite number, a string or an object of those")
    return value


def checked_scale(kind: FeedbackKind, value: Any, scale: Any) -> tuple[float, float] | None:
    """The ends of a number's scale, worst or least first. Raises: InputError."""
    if scale is None:
        return None
    if kind != FeedbackKind.NUMBER:
        raise wrong("scale: only a number has one")
    if not isinstance(scale, list | tuple) or len(scale) != 2 or not all(map(_is_number, scale)):
        raise wrong("scale: it is a list of two finite numbers, the lowest and the highest")
    low, high = float(scale[0]), float(scale[1])
    if not low < high or not low <= value <= high:
        raise wrong(f"value: {value} does not lie on the scale from {low:g} to {high:g}")
    return low, high


def is_plain(value: Any) -> bool:
    """Whether every number in `value` is finite."""
    if isinstance(value, dict):
        return all(is_plain(item) for item in value.values())
    if isinstance(value, list):
        return all(is_plain(item) for item in value)
    return not isinstance(value, float) or math.isfinite(value)


def wrong(why: str) -> InputError:
    return InputError("The feedback was not taken.", f"{why[0].upper()}{why[1:]}.", "Correct it and send it again.")


def _preference(value: Any) -> Json:
    """{"chosen": answer, "rejected": answer}, two different ones."""
    if not isinstance(value, dict) or set(value) != {"chosen", "rejected"} or not all(map(_is_answer, value.values())):
        raise wrong(
            'value: a preference is {"chosen": answer, "rejected": answer}, where an answer is {"choice": number}, '
            '{"exchange": id}, {"text": text} or {"message": object}'
        )
    if value["chosen"] == value["rejected"]:
        raise wrong("value: the chosen and the rejected answer are the same")
    return value


def _is_answer(answer: Any) -> bool:
    if not isinstance(answer, dict) or len(answer) != 1:
        return False
    ((kind, content),) = answer.items()
    if kind == "choice":
        return isinstance(content, int) and not isinstance(content, bool) and content >= 0
    if kind in ("exchange", "text"):
        return isinstance(content, str) and bool(content.strip()) and len(content) <= MAX_TEXT_CHARS
    return kind == "message" and isinstance(content, dict) and bool(content) and is_plain(content)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_TEXT_CHARS:
        raise wrong(f"value: a text has 1 to {MAX_TEXT_CHARS} characters")
    return value
