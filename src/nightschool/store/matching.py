"""What makes two messages the same message after a client has re-serialized one of them."""

from __future__ import annotations

import json

import orjson

from nightschool.types import Json

_encoder = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_in_order = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def content_text(content: object) -> str:
    """The text of a message's content: a string, a list of text parts, or nothing."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, dict))
        return "".join(text for text in texts if isinstance(text, str))
    return json.dumps(content, ensure_ascii=False)


def match_key(message: Json) -> bytes:
    """What survives a client's re-serialization of a message: role, text, calls' names and arguments.

    Two messages with the same key are the same message for session inference and the token splice;
    ids of calls, nulls and unknown keys do not count. Arguments count as what they say, not as they are
    spelled: clients of some dialects get them as objects.
    """
    made = message.get("tool_calls")
    calls = [
        (call["function"].get("name"), _read(call["function"].get("arguments")))
        for call in (made if isinstance(made, list) else ())
        if isinstance(call, dict) and isinstance(call.get("function"), dict)
    ]
    return sorted_json([message.get("role"), content_text(message.get("content")), calls])


def _read(arguments: object) -> object:
    """The value that an argument text spells; a text that is no JSON stays."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments


def sorted_json(value: object) -> bytes:
    """JSON with sorted keys and no spaces, one spelling for each value.

    orjson takes nearly everything; not lone surrogates and long numbers, and what is not a number it calls null.
    A client's strangest message must still be stored as what it is.
    """
    try:
        data = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return _encoder.encode(value).encode()
    return _encoder.encode(value).encode() if b"null" in data else _cut_to_size(data)


def ordered_json(value: object) -> bytes:
    """JSON as clients write it: keys in their order, no spaces, nothing escaped that need not be."""
    try:
        data = orjson.dumps(value)
    except TypeError:
        return sorted_json(value)
    return _in_order.encode(value).encode() if b"null" in data else _cut_to_size(data)


def _cut_to_size(data: bytes) -> bytes:
    """A copy of what orjson made: its own keeps the 4 KB that it was written in, and messages are remembered."""
    return b"%b" % data
