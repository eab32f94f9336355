"""Tool calls whose ids no two share: what a file promises its readers, and agents do not keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nightschool.types import Json


def with_own_ids(messages: Sequence[Json]) -> list[Json]:
    """The conversation in which each call has an id of its own, and each result that of its call.

    A result answers the first open call of its id in the last turn that made one. A call keeps its id where no
    earlier call has it; a second `c1` becomes `c1_2`, and one without an id `call_N`. What begins alike is named alike.
    """
    taken: set[str] = set()
    waiting: dict[Any, list[str]] = {}  # new ids of the calls by their own, in the order in which they are answered
    return [
        _answer(message, waiting) if message.get("role") == "tool" else _reply(message, taken, waiting)
        for message in messages
    ]


def _reply(message: Json, taken: set[str], waiting: dict[Any, list[str]]) -> Json:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    named: list[Any] = []
    turn: dict[Any, list[str]] = {}
    for call in calls:
        if isinstance(call, dict):
            own = _usable(call.get("id"))
            new = _free(own or f"call_{len(taken) + 1}", taken)
            turn.setdefault(own, []).append(new)
            call = call if new == own else call | {"id": new}
        named.append(call)
    waiting |= turn
    changed = any(new is not old for new, old in zip(named, calls, strict=True))
    return message | {"tool_calls": named} if changed else message


def _answer(message: Json, waiting: dict[Any, list[str]]) -> Json:
    own = _usable(message.get("tool_call_id"))
    names = waiting.get(own)
    if not names:
        return message
    new = names.pop(0) if len(names) > 1 else names[0]  # a second answer is to the same call
    return message if new == own else message | {"tool_call_id": new}


def _usable(own: Any) -> str | None:
    return own if isinstance(own, str) and own else None


def _free(wanted: str, taken: set[str]) -> str:
    """`wanted`, with the first number behind it that makes it new."""
    new, number = wanted, 1
    while new in taken:
        number += 1
        new = f"{wanted}_{number}"
    taken.add(new)
    return new
