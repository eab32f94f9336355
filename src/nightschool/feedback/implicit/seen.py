"""A session as signals see it, and what they find there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from nightschool.store.matching import content_text
from nightschool.types import Branch, Feedback, Json

LONGEST_TEXT = 20_000  # characters of one message that are read
QUOTED = 120


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a message stands: at `position` (1 is the first) of an exchange's prompt and reply."""

    exchange_id: str
    position: int


@dataclass(frozen=True, slots=True)
class Span:
    """Evidence: characters [begin, end) of the message at a spot, or the exchange as such where `position` is `None`.

    `text` quotes it.
    """

    exchange_id: str
    position: int | None = None
    begin: int = 0
    end: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """What a signal says of a session: 0 that it is not there, else how often or how much, and where."""

    value: float
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """One exchange. `above_id` is the one that it continues; `leaf_hash` and `reply_hash` name the last message of its
    prompt and its reply. Times in seconds since the epoch."""

    id: str
    started_at: float
    ended_at: float
    status: str
    branch: Branch
    above_id: str | None = None
    leaf_hash: str | None = None
    reply_hash: str | None = None
    retry_of: str | None = None
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """`messages` are those of the main branch, with what was said after its last reply where a log tells; `spots` says
    where each stands. `calls` are all exchanges, oldest first; `main` names those of the main branch.

    `next_at`: when the same principal came again, `None` where that did not happen by `as_of` or nobody is known by
    name. `timed` is False where the times are those of an import.
    """

    id: str
    principal: str
    messages: tuple[Json, ...]
    spots: tuple[Spot, ...]
    calls: tuple[Call, ...] = ()
    main: frozenset[str] = frozenset()
    feedback: tuple[Feedback, ...] = field(default=())
    next_at: float | None = None
    timed: bool = True
    as_of: float = 0.0

    @property
    def last_at(self) -> float:
        return max((call.ended_at for call in self.calls), default=0.0)


def spoken(seen: Seen, role: str) -> list[tuple[int, str]]:
    """What one role said in words: places among the messages, and the texts."""
    told = (
        (place, content_text(message.get("content"))[:LONGEST_TEXT])
        for place, message in enumerate(seen.messages)
        if message.get("role") == role
    )
    return [(place, text) for place, text in told if text.strip()]


def answers(seen: Seen) -> list[tuple[int, str]]:
    """What the user said after the agent's first reply."""
    roles = [message.get("role") for message in seen.messages]
    first = roles.index("assistant") if "assistant" in roles else len(roles)
    return [(place, text) for place, text in spoken(seen, "user") if place > first]


def tool_calls(seen: Seen) -> Iterator[tuple[int, str, object]]:
    """Every call that was made: its place among the messages, the tool's name, the arguments as they came."""
    for place, message in enumerate(seen.messages):
        made = message.get("tool_calls")
        for call in made if isinstance(made, list) else ():
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict):
                yield place, str(function.get("name") or ""), function.get("arguments")


def quote(seen: Seen, place: int, text: str, begin: int = 0, end: int | None = None) -> Span:
    """Evidence in the message at `place`, by default all of it."""
    spot, end = seen.spots[place], len(text) if end is None else min(end, len(text))
    return Span(spot.exchange_id, spot.position, begin, end, text[begin : min(end, begin + QUOTED)])


def counted(spans: Sequence[Span]) -> Found:
    return Found(float(len(spans)), tuple(spans))
