"""The project's tool-call syntax inside a ChatML conversation.

A call is `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` in the assistant's text, the syntax of
the Hermes models, so that servers with a Hermes parser read it too. Tools are announced in the system
message, one signature a line.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from nightschool.store.matching import content_text
from nightschool.types import Json

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """An assistant's text taken apart. `valid` is False when a call was begun but cannot be read."""

    content: str | None
    calls: tuple[tuple[str, str], ...]  # (function name, arguments as JSON text)
    valid: bool


def announce(tools: tuple[Json, ...]) -> str:
    """The lines that tell the model which tools exist and how to call one."""
    lines = ["Tools:"]
    for tool in tools:
        function = tool["function"]
        schema = function.get("parameters") or {}
        required = schema.get("required") or ()
        arguments = ", ".join(
            f"{name}{'' if name in required else '?'}: {_type(spec)}"
            for name, spec in (schema.get("properties") or {}).items()
        )
        lines.append(f"{function['name']}({arguments}): {function.get('description') or ''}".rstrip(": "))
    lines.append('To call one: <tool_call>{"name": ..., "arguments": {...}}</tool_call>')
    return "\n".join(lines)


def _type(spec: Any) -> Any:
    return (spec.get("type") if isinstance(spec, dict) else None) or "any"


def write_calls(message: Json) -> str:
    """The text an assistant message with `tool_calls` stands for."""
    parts = [content_text(message.get("content"))]
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = function.get("arguments")
        raw = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        name = json.dumps(function["name"], ensure_ascii=False)
        parts.append(f'<tool_call>{{"name": {name}, "arguments": {raw or "{}"}}}</tool_call>')
    return "".join(parts)


def parse_reply(text: str) -> ParsedReply:
    """Split an assistant's text into content and calls; keeps the arguments' own spelling."""
    calls: list[tuple[str, str]] = []
    between: list[str] = []
    at = 0
    # A search for each marker, not one pattern for both: on many opened calls that would take the square of the time.
    while (start := text.find(OPEN, at)) >= 0 and (end := text.find(CLOSE, start)) >= 0:
        call = _read_call(text[start + len(OPEN) : end].strip())
        if call is None:
            return ParsedReply(text, (), False)
        calls.append(call)
        between.append(text[at:start])
        at = end + len(CLOSE)
    content = "".join([*between, text[at:]]).strip()
    if OPEN in content or CLOSE in content:
        return ParsedReply(text, (), False)
    return ParsedReply(content or None if calls else content, tuple(calls), True)


def _read_call(body: str) -> tuple[str, str] | None:
    try:
        call = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", {})
    if not isinstance(arguments, dict):
        return None
    return call["name"], _as_written(body, arguments)


def _as_written(body: str, arguments: Json) -> str:
    """The arguments in the model's own spelling where it can be found, so that rendering back is exact."""
    match = re.search(r'"arguments"\s*:\s*', body)
    if match is not None:
        value, end = json.JSONDecoder().raw_decode(body, match.end())
        if value == arguments:
            return body[match.end() : end]
    return json.dumps(arguments, ensure_ascii=False)
