"""What tracing tools keep as a call's input and output, as chat messages.

They keep whatever the instrumented program passed: a text, a list of messages in one of several dialects, a whole
request or reply, or the JSON text of any of these.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import orjson

from nightschool.gateway.dialects import chat_parse, messages_form, messages_parse, responses_form, responses_parse
from nightschool.gateway.dialects.sse import load_json
from nightschool.imports.values import Refused
from nightschool.types import Choice, Json

ROLES = {"human": "user", "ai": "assistant", "model": "assistant"}


def unpacked(value: Any) -> Any:
    """A value that may have been written as JSON text."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return load_json(value)
        except (ValueError, RecursionError):
            return value
    return value


def messages_said(value: Any) -> list[Json]:
    """The input of a call. Raises: Refused where nothing of it can be read."""
    value = unpacked(value)
    if isinstance(value, str) and value:
        return [{"role": "user", "content": value}]
    if isinstance(value, list) and value:
        return [message for item in value for message in _message(item)]
    if isinstance(value, dict):
        if isinstance(value.get("messages"), list):
            return messages_form.messages_of(value) if value.get("system") else messages_said(value["messages"])
        if isinstance(value.get("input"), str | list):
            return responses_form.messages_of(value)
        if isinstance(value.get("prompt"), str | list):
            return messages_said(value["prompt"])
        if "role" in value:
            return list(_message(value))
        if value:
            return [{"role": "user", "content": json.dumps(value, ensure_ascii=False)}]
    raise Refused("a call without input")


def choices_said(value: Any) -> tuple[Choice, ...]:
    """The output of a call; every message of a list is one of several replies. Raises: Refused where it has none."""
    value = unpacked(value)
    if isinstance(value, dict):
        parse = next((parse for key, parse in REPLIES if isinstance(value.get(key), list)), None)
        if parse is not None and (parse is not messages_parse.parse_plain or "stop_reason" in value):
            choices = parse(orjson.dumps(value, default=str)).choices
            if choices:
                return choices
    if isinstance(value, list) and value and all(isinstance(item, dict) and "role" in item for item in value):
        replies = [(item, next(iter(_message(item)), None)) for item in value]
        found = [(item, message) for item, message in replies if message and message["role"] == "assistant"]
        if found:
            return tuple(Choice(n, message, item.get("finish_reason")) for n, (item, message) in enumerate(found))
    if value is None or value == "" or value == [] or value == {}:
        raise Refused("a call without output")
    return (Choice(0, _reply(value), value.get("finish_reason") if isinstance(value, dict) else None),)


REPLIES = (
    ("choices", chat_parse.parse_plain),
    ("output", responses_parse.parse_plain),
    ("content", messages_parse.parse_plain),
)


def tools_said(value: Any) -> tuple[Any, ...]:
    """Tool schemas: a list, or texts of JSON in one."""
    value = unpacked(value)
    return tuple(map(unpacked, value)) if isinstance(value, list) else ()


def _reply(value: Any) -> Json:
    if isinstance(value, dict) and (value.keys() & {"role", "content", "tool_calls", "parts"}):
        message = next(iter(_message({"role": "assistant"} | value)))
        return message | {"role": "assistant"}
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return {"role": "assistant", "content": text}


def _message(item: Any) -> Iterator[Json]:
    """One item of a list of messages; results of tools become messages of their own."""
    if isinstance(item, str):
        yield {"role": "user", "content": item}
        return
    if not isinstance(item, dict):
        raise Refused("a message is no object")
    if isinstance(item.get("message"), dict) and "role" not in item:
        item = item["message"]
    role = item.get("role") or item.get("type")
    if not isinstance(role, str):
        raise Refused("a message without a role")
    role = ROLES.get(role, role)
    if isinstance(item.get("parts"), list):
        yield from _of_parts(role, item)
    elif isinstance(item.get("content"), list) and any(_is_block(block) for block in item["content"]):
        yield from messages_form.messages_of({"messages": [item | {"role": role}]})
    else:
        yield {key: value for key, value in item.items() if key != "type" or "role" in item} | {"role": role}


def _is_block(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") in ("tool_use", "tool_result", "thinking", "redacted_thinking")


def _of_parts(role: str, item: Json) -> Iterator[Json]:
    """OpenTelemetry's messages: a role and parts. Ids are trimmed: the specification's own sample has a space."""
    texts: list[Any] = []
    thoughts: list[str] = []
    calls: list[Json] = []
    answers: list[Json] = []
    for part in item["parts"]:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            texts.append({"type": "text", "text": part.get("content", part.get("text"))})
        elif kind == "reasoning":
            thoughts.append(str(part.get("content") or ""))
        elif kind == "tool_call":
            calls.append(call(part.get("id"), part.get("name"), part.get("arguments")))
        elif kind == "tool_call_response":
            given = part.get("response", part.get("result"))
            answers.append({"role": "tool", "tool_call_id": trimmed(part.get("id")), "content": _text(given)})
        else:
            texts.append(part)
    yield from answers
    if answers and not (texts or thoughts or calls):
        return
    plain = all(isinstance(part, dict) and part.keys() == {"type", "text"} for part in texts)
    message: Json = {"role": role, "content": "".join(part["text"] or "" for part in texts) if plain else texts}
    if not texts:
        message["content"] = None
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    if item.get("name"):
        message["name"] = item["name"]
    yield message


def call(call_id: Any, name: Any, arguments: Any) -> Json:
    """A tool call of a chat message; arguments that are text stay that text."""
    function = {"name": name, "arguments": _text(arguments if arguments is not None else {})}
    return {"id": trimmed(call_id), "type": "function", "function": function}


def trimmed(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
