"""Content blocks of Anthropic Messages, and the chat messages that say the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from nightschool.gateway.dialects.sse import load_json
from nightschool.types import Json

# Marks on a block that steer the provider's cache; clients move them from turn to turn.
TRANSPORT = frozenset({"cache_control"})


def messages_of(fields: Json) -> list[Json]:
    """A request's system prompt and messages as chat messages."""
    found: list[Json] = []
    system = fields.get("system")
    if system:
        found.append({"role": "system", "content": _content(system)})
    for message in fields.get("messages") or ():
        content = message.get("content")
        if message.get("role") == "assistant" and isinstance(content, list):
            found.append(assistant_message(content))
        elif isinstance(content, list):
            found += _turn(message, content)
        else:
            found.append(message)
    return found


def assistant_message(blocks: Sequence[Any]) -> Json:
    """One assistant's message of content blocks. Signed thoughts stay whole; other blocks too, aside."""
    kinds: dict[str, list[Json]] = {"text": [], "tool_use": [], "thinking": [], "other": []}
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        name = "thinking" if kind == "redacted_thinking" else kind
        kinds[name if name in kinds else "other"].append(block)
    message: Json = {"role": "assistant", "content": _text_content(kinds["text"])}
    if kinds["thinking"]:
        message["reasoning_content"] = "".join(block.get("thinking") or "" for block in kinds["thinking"])
        message["thinking_blocks"] = kinds["thinking"]
    if kinds["tool_use"]:
        message["tool_calls"] = [_call(block) for block in kinds["tool_use"]]
    if kinds["other"]:
        message["other_blocks"] = kinds["other"]
    return message


def tools_of(fields: Json) -> list[Json]:
    """A request's tools as functions; the provider's own stay as they came."""
    return [tool if is_hosted(tool) else _function(tool) for tool in fields.get("tools") or ()]


def is_hosted(tool: Any) -> bool:
    """Whether the provider runs this tool itself."""
    return not isinstance(tool, dict) or tool.get("type") not in (None, "custom", "function")


def arguments_text(value: Any) -> str:
    """A tool's input as the argument text of a chat call; what is text already is what could not be read."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def arguments_object(arguments: Any) -> Json:
    """The argument text of a chat call as a tool's input, which must be an object; else it stands under one key."""
    if not isinstance(arguments, str) or not arguments.strip():
        return {}
    try:
        value = load_json(arguments)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"unreadable_arguments": arguments}


def _turn(message: Json, blocks: Sequence[Any]) -> list[Json]:
    """A user's message: the results of tools first, each as a message of its own, then what the user said."""
    results = [_result(block) for block in blocks if isinstance(block, dict) and block.get("type") == "tool_result"]
    parts = [_part(block) for block in blocks if not isinstance(block, dict) or block.get("type") != "tool_result"]
    return [*results, {**message, "content": parts}] if parts or not results else results


def _result(block: Json) -> Json:
    message: Json = {"role": "tool", "tool_call_id": block.get("tool_use_id")}
    if "content" in block:
        message["content"] = _content(block["content"])
    if "is_error" in block:
        message["is_error"] = block["is_error"]
    return message


def _content(content: Any) -> Any:
    return [_part(block) for block in content] if isinstance(content, list) else content


def _part(block: Any) -> Any:
    """A block as a part of a chat message; one that chat has no word for stays as it is."""
    if not isinstance(block, dict):
        return block
    block = {key: value for key, value in block.items() if key not in TRANSPORT}
    source = block.get("source")
    if block.get("type") not in ("image", "document") or not isinstance(source, dict):
        return block
    url = _url(source)
    if url is None:
        return block
    if block["type"] == "image":
        return {"type": "image_url", "image_url": {"url": url}}
    named = {"filename": block["title"]} if block.get("title") else {}
    return {"type": "file", "file": {"file_data": url, **named}}


def _url(source: Json) -> str | None:
    if source.get("type") == "url":
        return source.get("url")
    if source.get("type") == "base64":
        return f"data:{source.get('media_type')};base64,{source.get('data')}"
    return None


def _text_content(blocks: list[Json]) -> Any:
    """The text of a message, or its blocks where they say more than text; nothing is `None`."""
    if not blocks:
        return None
    marked = [{k: v for k, v in b.items() if k not in TRANSPORT and v is not None} for b in blocks]
    if all(block.keys() <= {"type", "text"} for block in marked):
        return "".join(block.get("text") or "" for block in marked)
    return marked


def _call(block: Json) -> Json:
    function = {"name": block.get("name"), "arguments": arguments_text(block.get("input", {}))}
    return {"id": block.get("id"), "type": "function", "function": function}


def _function(tool: Json) -> Json:
    function: Json = {"name": tool.get("name")}
    if "description" in tool:
        function["description"] = tool["description"]
    function["parameters"] = tool.get("input_schema")
    others = {k: v for k, v in tool.items() if k not in ("type", "name", "description", "input_schema", *TRANSPORT)}
    return {"type": "function", "function": function | others}
