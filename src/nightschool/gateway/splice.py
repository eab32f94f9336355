"""Change single members of a JSON text and leave every other byte as it was.

Parsing a body and writing it again would alter numbers, escapes and repeated keys that are none of the
gateway's business. So a body is parsed together with the place of each member, and edits are cut into the
text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_SPACE = re.compile(r"[ \t\n\r]*")


class NotJsonError(ValueError):
    """The text is not one JSON object."""


def _constant(name: str) -> Any:
    raise NotJsonError(f"{name} is not JSON")


# The decoder's own scanner, without the two calls around it.
_decoder: Any = json.JSONDecoder(parse_constant=_constant)
_scan = _decoder.scan_once


@dataclass(frozen=True, slots=True)
class Member:
    """One `"key": value` of an object: `text[start:end]`, of which `text[value_start:end]` is the value."""

    key: str
    value: Any
    start: int
    value_start: int
    end: int


@dataclass(frozen=True, slots=True)
class Edit:
    """Put `new` where `text[start:end]` was."""

    start: int
    end: int
    new: str


def decode(raw: bytes) -> str:
    """`raw` as text. Raises: NotJsonError when it is not UTF-8."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotJsonError(f"byte {error.start} is not UTF-8") from error


def read_object(text: str, opened: str | None = None) -> list[Member]:
    """The members of the one object that `text` is; `opened` as in `members_at`. Raises: NotJsonError."""
    start = skip_space(text, 0)
    members, end = members_at(text, start, opened)
    if skip_space(text, end) != len(text):
        raise NotJsonError(f"something follows the object at character {end}")
    return members


def members_at(text: str, start: int, opened: str | None = None) -> tuple[list[Member], int]:
    """The members of the object that begins at `start`, and the place after its end.

    An array under the key `opened` is not read as a value: its objects are opened, so that each thing in
    them is read once.
    """
    if text[start : start + 1] != "{":
        raise NotJsonError(f"no object at character {start}")
    members: list[Member] = []
    at = skip_space(text, start + 1)
    if text[at : at + 1] == "}":
        return members, at + 1
    while True:
        if text[at : at + 1] != '"':
            raise NotJsonError(f"no key at character {at}")
        key, colon = _value(text, at)
        colon = skip_space(text, colon)
        if text[colon : colon + 1] != ":":
            raise NotJsonError(f"no colon at character {colon}")
        value_start = skip_space(text, colon + 1)
        if key == opened and text[value_start : value_start + 1] == "[":
            value, end = _objects(text, value_start)
        else:
            value, end = _value(text, value_start)
        members.append(Member(key, value, at, value_start, end))
        at = skip_space(text, end)
        mark = text[at : at + 1]
        if mark == "}":
            return members, at + 1
        if mark != ",":
            raise NotJsonError(f"no comma or brace at character {at}")
        at = skip_space(text, at + 1)


def skip_space(text: str, at: int) -> int:
    """The first place from `at` on that is not JSON white space."""
    if text[at : at + 1] not in " \t\n\r":
        return at
    match = _SPACE.match(text, at)
    return match.end() if match else at


def values(members: Iterable[Member]) -> dict[str, Any]:
    """The members as a dict; of a repeated key the last one counts, as in every JSON library."""
    return {member.key: member.value for member in members}


def apply(text: str, edits: Iterable[Edit]) -> str:
    """`text` with all `edits` made; they do not overlap."""
    parts: list[str] = []
    at = 0
    for edit in sorted(edits, key=lambda edit: edit.start):
        parts += (text[at : edit.start], edit.new)
        at = edit.end
    parts.append(text[at:])
    return "".join(parts)


def set_members(text: str, members: list[Member], new: Mapping[str, Any]) -> list[Edit]:
    """Edits that give each key of `new` its value: in place where the key is there, else at the front."""
    edits = [Edit(member.value_start, member.end, _spell(new[member.key])) for member in members if member.key in new]
    absent = [key for key in new if not any(member.key == key for member in members)]
    if absent:
        added = ",".join(f"{_spell(key)}:{_spell(new[key])}" for key in absent)
        at = members[0].start if members else text.index("{") + 1
        edits.append(Edit(at, at, added + ("," if members else "")))
    return edits


def _spell(value: Any) -> str:
    """JSON for a value; the library is slow at single constants."""
    return "true" if value is True else json.dumps(value)


def drop_members(members: list[Member], keys: frozenset[str]) -> list[Edit]:
    """Edits that take the members named by `keys` out of their object, with the commas that held them."""
    edits: list[Edit] = []
    kept_end: int | None = None  # end of the last member that stays
    for position, member in enumerate(members):
        if member.key not in keys:
            kept_end = member.end
        elif kept_end is not None:  # cut from the one before: takes the comma in front
            start = edits.pop().start if members[position - 1].key in keys else kept_end
            edits.append(Edit(start, member.end, ""))
        else:  # nothing stays before it: takes the comma behind
            following = members[position + 1].start if position + 1 < len(members) else member.end
            edits.append(Edit(member.start, following, ""))
    return edits


def _objects(text: str, start: int) -> tuple[list[list[Member] | None], int]:
    """The members of each object of an array, `None` for an item that is no object; and the place after it."""
    items: list[list[Member] | None] = []
    at = skip_space(text, start + 1)
    if text[at : at + 1] == "]":
        return items, at + 1
    while True:
        if text[at : at + 1] == "{":
            members, end = members_at(text, at)
            items.append(members)
        else:
            _, end = _value(text, at)
            items.append(None)
        at = skip_space(text, end)
        mark = text[at : at + 1]
        if mark == "]":
            return items, at + 1
        if mark != ",":
            raise NotJsonError(f"no comma or bracket at character {at}")
        at = skip_space(text, at + 1)


def _value(text: str, at: int) -> tuple[Any, int]:
    try:
        return _scan(text, at)
    except NotJsonError:
        raise
    except StopIteration as error:
        raise NotJsonError(f"no value at character {error.value}") from error
    except ValueError as error:
        raise NotJsonError(str(error)) from error
    except RecursionError as error:
        raise NotJsonError("nested too deeply") from error
