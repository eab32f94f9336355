"""Hide in a reply what the gateway asked for on its own account, plain and streamed."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import orjson

from nightschool.gateway import splice
from nightschool.gateway.dialects.sse import LINE_END, event_data
from nightschool.gateway.splice import Edit, Member, NotJsonError
from nightschool.types import Json

CHOICES = "choices"
TOP_IDS = frozenset({"prompt_token_ids"})
CHOICE_IDS = frozenset({"token_ids", "prompt_token_ids"})
INNER = ("response", "message")  # where events of other dialects hold the reply, and with it the model's name

# A member `model` whose value is text: what stands before the value, and the value.
_MODEL = re.compile(rb'("model"[ \t\n\r]*:[ \t\n\r]*)"(?:[^"\\]|\\.)*"')

# Numbers that do not survive parsing and writing: more digits than a 64-bit integer or a double holds.
_EXACT = re.compile(rb"[0-9]{18}")


@dataclass(frozen=True, slots=True)
class Hidden:
    """What the gateway changed in a request, and so must hide in the reply.

    `model` is the client's own name where the engine was asked for another; `logprobs` and `ids` are True
    when the client did not ask for them and the gateway did.
    """

    model: str | None = None
    logprobs: bool = False
    ids: bool = False

    def __bool__(self) -> bool:
        return self.model is not None or self.logprobs or self.ids


def hide_in_reply(raw: bytes, hidden: Hidden) -> bytes:
    """A plain reply as the client expects it. One that cannot be read passes as it is."""
    if not hidden:
        return raw
    quick = _only_renamed(raw, hidden)
    if quick is not None:
        return quick
    try:
        text = splice.decode(raw)
        edits = _edits(text, splice.read_object(text, CHOICES), hidden)
    except NotJsonError:
        return raw
    return splice.apply(text, edits).encode() if edits else raw


def hide_in_event(raw: bytes, hidden: Hidden) -> bytes:
    """One event as the client expects it. One that carries nothing of ours passes byte for byte."""
    if not hidden:
        return raw
    quick = _only_renamed(raw, hidden)
    if quick is not None:
        return quick
    if raw.startswith(b"data: {") and raw.endswith(b"}\n\n") and raw.count(b"\n") == 2 and not _EXACT.search(raw):
        try:
            event = orjson.loads(raw[6:-2])
        except orjson.JSONDecodeError:
            return _splice_event(raw, hidden)
        return b"data: " + orjson.dumps(event) + b"\n\n" if _strip(event, hidden) else raw
    return _splice_event(raw, hidden)


def _only_renamed(raw: bytes, hidden: Hidden) -> bytes | None:
    """JSON, perhaps in an event, in which nothing but the name of the model is ours; `None` where that takes reading.

    The one `"model"` behind the first brace and before the second is the object's own: a quote within text is
    escaped. Keys may be spelled with escapes; these take reading.
    """
    if (hidden.ids and b"token_ids" in raw) or (hidden.logprobs and b'"logprobs"' in raw) or b"\\u00" in raw:
        return None
    if hidden.model is None:
        return raw
    found = _MODEL.search(raw)
    if found is None:
        return None if b'"model"' in raw else raw
    at = found.start()
    if raw.count(b'"model"') != 1 or raw.count(b"{", 0, at) != 1 or raw[at - 1 : at] == b"\\":
        return None
    name = json.dumps(hidden.model, ensure_ascii=False).encode()
    return raw[: found.end(1)] + name + raw[found.end() :]


def _strip(event: Json, hidden: Hidden) -> bool:
    """Take what is ours out of a parsed event, in place; whether there was anything."""
    changed = False
    if hidden.model is not None and isinstance(event.get("model"), str):
        event["model"] = hidden.model
        changed = True
    for key in INNER:
        inner = event.get(key)
        if hidden.model is not None and isinstance(inner, dict) and isinstance(inner.get("model"), str):
            inner["model"] = hidden.model
            changed = True
    if hidden.ids:
        for key in TOP_IDS & event.keys():
            del event[key]
            changed = True
    choices = event.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if not _carries_ours(choice, hidden):
            continue
        changed = True
        if hidden.ids:
            for key in CHOICE_IDS:
                choice.pop(key, None)
        if hidden.logprobs and "logprobs" in choice:
            choice["logprobs"] = None
    return changed


def _splice_event(raw: bytes, hidden: Hidden) -> bytes:
    """The same for events that are not one line of plain JSON: slower, and exact in every byte it keeps."""
    try:
        event = splice.decode(raw)
        data = event_data(event)
        if data is None or not data.startswith("{"):
            return raw
        edits = _edits(data, splice.read_object(data, CHOICES), hidden)
    except NotJsonError:
        return raw
    if not edits:
        return raw
    edited = splice.apply(data, edits)
    if data in event:  # on one line: the other bytes of the event stay
        return event.replace(data, edited, 1).encode()
    others = [line for line in LINE_END.split(event) if line and not line.startswith("data:")]
    lines = [*others, *(f"data: {line}" for line in edited.split("\n"))]
    return ("\n".join(lines) + "\n\n").encode()


def _edits(text: str, members: list[Member], hidden: Hidden) -> list[Edit]:
    edits: list[Edit] = []
    for member in members:
        if member.key == "model" and hidden.model is not None and isinstance(member.value, str):
            edits.append(Edit(member.value_start, member.end, json.dumps(hidden.model, ensure_ascii=False)))
        elif member.key in INNER and hidden.model is not None and isinstance(member.value, dict):
            inner, _ = splice.members_at(text, member.value_start)
            edits += [
                Edit(part.value_start, part.end, json.dumps(hidden.model, ensure_ascii=False))
                for part in inner
                if part.key == "model" and isinstance(part.value, str)
            ]
        elif member.key == CHOICES and isinstance(member.value, list):
            edits += [edit for choice in member.value if choice for edit in _choice_edits(choice, hidden)]
    if hidden.ids:
        edits += splice.drop_members(members, TOP_IDS)
    return edits


def _choice_edits(members: list[Member], hidden: Hidden) -> list[Edit]:
    edits = splice.drop_members(members, CHOICE_IDS) if hidden.ids else []
    if hidden.logprobs:
        # Null, not absent: so the API writes a choice whose log-probabilities nobody asked for.
        edits += [
            Edit(member.value_start, member.end, "null")
            for member in members
            if member.key == "logprobs" and member.value is not None
        ]
    return edits


def _carries_ours(choice: Any, hidden: Hidden) -> bool:
    if not isinstance(choice, dict):
        return False
    return (hidden.ids and not CHOICE_IDS.isdisjoint(choice)) or (
        hidden.logprobs and choice.get("logprobs") is not None
    )
