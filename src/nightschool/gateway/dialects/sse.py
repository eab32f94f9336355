"""Server-sent events, cut out of a stream of bytes and read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson

# Two line ends in a row close an event. The groups are atomic: a lone CRLF is one line end, not two.
_EVENT_END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
LINE_END = re.compile(r"\r\n|\n|\r")


class EventSplitter:
    """Cuts a stream of bytes into server-sent events, each with the bytes that close it."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._seen = 0  # up to here no event ends: a huge event in small pieces is not read again with each

    def feed(self, data: bytes) -> list[bytes]:
        """The events that `data` completes; joined with `rest` they are all bytes ever fed."""
        self._rest += data
        ends = [end.end() for end in _EVENT_END.finditer(self._rest, self._seen)]
        starts = [0, *ends]
        events = [bytes(self._rest[start:end]) for start, end in zip(starts, ends, strict=False)]
        del self._rest[: starts[-1]]
        self._seen = max(0, len(self._rest) - 2)  # half of an end may stand there: CR and LF
        return events

    @property
    def rest(self) -> bytes:
        """What came after the last complete event."""
        return bytes(self._rest)


class Event(NamedTuple):
    """The JSON of one event; `done` is the word with which chat streams end, `broken` why it is no JSON."""

    value: Any = None
    done: bool = False
    broken: str | None = None


def event_data(event: str) -> str | None:
    """The `data` of an event (its lines joined), or `None` for comments and other events."""
    lines = [line[5:].removeprefix(" ") for line in LINE_END.split(event) if line.startswith("data:")]
    return "\n".join(lines) if lines else None


def read_events(raw: bytes) -> Iterator[Event]:
    """The events of a whole or broken-off stream that carry data, in order."""
    splitter = EventSplitter()
    for event in [*splitter.feed(raw), splitter.rest]:
        found = read_event(event)
        if found is not None:
            yield found


def read_event(event: bytes) -> Event | None:
    """One event, or `None` where it carries no data."""
    data = event_data(event.decode("utf-8", "replace"))
    if data is None:
        return None
    if data.strip() == "[DONE]":
        return Event(done=True)
    try:
        return Event(load_json(data))
    except ValueError as problem:
        return Event(broken=f"An event of the stream is not JSON: {problem}")


def load_json(raw: bytes | str) -> Any:
    """Parse JSON, with the slower library where the fast one is stricter (a lone surrogate's escape)."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return _load_slowly(raw)


def _load_slowly(raw: bytes | str) -> Any:
    try:
        return json.loads(raw)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def write_json(value: Any) -> bytes:
    """JSON in compact form, with the slower library where the fast one is stricter."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":")).encode()


def write_event(value: Any, name: str | None = None) -> bytes:
    """An event with JSON data, and its name where the dialect gives events names."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + write_json(value) + b"\n\n"
