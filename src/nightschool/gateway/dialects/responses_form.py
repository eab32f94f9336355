"""Items of OpenAI Responses, and the chat messages that say the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nightschool.types import Json

TEXT_PARTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
# How the kinds of items end that answer the assistant; all between two of them is one message of the assistant's.
ANSWERS = ("_output", "_response", "item_reference")


def messages_of(fields: Json, earlier: tuple[Json, ...] = ()) -> list[Json]:
    """A request's instructions and input as chat messages, the instructions before what was said `earlier`."""
    found: list[Json] = []
    if fields.get("instructions"):
        found.append({"role": "system", "content": fields["instructions"]})
    found += earlier
    given = fields.get("input")
    if isinstance(given, str):
        return [*found, {"role": "user", "content": given}]
    run: list[Json] = []  # the assistant's items since the last input
    for item in given or ():
        if _is_assistant(item):
            run.append(item)
            continue
        if run:
            found.append(assistant_message(run))
            run = []
        found.append(_message(item))
    return [*found, assistant_message(run)] if run else found


def assistant_message(items: Sequence[Json]) -> Json:
    """One assistant's message of output items. Reasoning stays whole beside its text; unknown items too, aside."""
    texts: list[Any] = []
    refusals: list[str] = []
    calls: list[Json] = []
    thoughts: list[Json] = []
    others: list[Json] = []
    for item in items:
        kind = item.get("type", "message")
        if kind == "message":
            _add_parts(item.get("content"), texts, refusals)
        elif kind == "function_call":
            calls.append(_call(item, "function", "arguments"))
        elif kind == "custom_tool_call":
            calls.append(_call(item, "custom", "input"))
        elif kind == "reasoning":
            thoughts.append(item)
        else:
            others.append(item)
    message: Json = {"role": "assistant", "content": _content(texts)}
    if refusals:
        message["refusal"] = "".join(refusals)
    if thoughts:
        message["reasoning_content"] = "".join(map(_thoughts, thoughts))
        message["reasoning_details"] = thoughts
    if calls:
        message["tool_calls"] = calls
    if others:
        message["other_items"] = others
    return message


def tools_of(fields: Json) -> list[Json]:
    """A request's tools as functions; the provider's own stay as they came."""
    return [_function(tool) for tool in fields.get("tools") or ()]


def is_complete(fields: Json) -> bool:
    """Whether the request carries everything it speaks of, but for a named earlier response."""
    given = fields.get("input")
    refers = isinstance(given, list) and any(_kind(item) == "item_reference" for item in given)
    return not refers and not fields.get("conversation")


def _kind(item: Any) -> str:
    return item.get("type") or "message" if isinstance(item, dict) else ""


def _is_assistant(item: Any) -> bool:
    kind = _kind(item)
    if kind == "message":
        return item.get("role") == "assistant"
    return bool(kind) and not kind.endswith(ANSWERS)


def _message(item: Any) -> Json:
    """An input item as a message; one that chat has no word for stays whole, as a user's."""
    kind = _kind(item)
    if kind == "message":
        return {"role": item.get("role"), "content": _input_content(item.get("content"))}
    if kind.endswith("_output"):
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": _input_content(item.get("output"))}
    return {"role": "user", "content": [item]}


def _input_content(content: Any) -> Any:
    return [_part(part) for part in content] if isinstance(content, list) else content


def _part(part: Any) -> Any:
    """A part of an input as a part of a chat message; one that chat has no word for stays as it is."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in TEXT_PARTS:
        return {"type": "text", "text": part.get("text")}
    if kind == "input_image" and part.get("image_url"):
        detail = {"detail": part["detail"]} if part.get("detail") else {}
        return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}
    if kind == "input_file":
        return {"type": "file", "file": {key: value for key, value in part.items() if key != "type"}}
    return part


def _add_parts(content: Any, texts: list[Any], refusals: list[str]) -> None:
    if isinstance(content, str):
        texts.append({"type": "text", "text": content})
    for part in content if isinstance(content, list) else ():
        if part.get("type") == "refusal":
            refusals.append(part.get("refusal") or "")
        elif part.get("annotations"):
            texts.append({"type": "text", "text": part.get("text"), "annotations": part["annotations"]})
        else:
            texts.append(_part(part))


def _content(parts: list[Any]) -> Any:
    """The text of a message, or its parts where they say more than text; nothing is `None`."""
    if not parts:
        return None
    if all(part.keys() == {"type", "text"} for part in parts):
        return "".join(part["text"] or "" for part in parts)
    return parts


def _thoughts(item: Json) -> str:
    """The words of a reasoning item: its content where it shows it, else the summary."""
    parts = item.get("content") or item.get("summary") or ()
    return "".join(part.get("text") or "" for part in parts)


def _call(item: Json, kind: str, text: str) -> Json:
    return {"id": item.get("call_id"), "type": kind, kind: {"name": item.get("name"), text: item.get(text)}}


def _function(tool: Any) -> Any:
    if not isinstance(tool, dict) or tool.get("type") != "function" or "function" in tool:
        return tool
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}
