"""What both translations into chat completions share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nightschool.errors import InputError
from nightschool.gateway.dialects.sse import load_json
from nightschool.types import Json

# Request fields that mean the same in every dialect, sampling extensions of open servers included.
SAME = (
    "chat_template_kwargs",
    "frequency_penalty",
    "metadata",
    "min_p",
    "parallel_tool_calls",
    "presence_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "temperature",
    "top_k",
    "top_p",
    "user",
)
MESSAGE_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "refusal")


def chat_fields(fields: Json, messages: Iterable[Json], tools: Sequence[Json]) -> Json:
    """The part of a chat request that needs no renaming."""
    body: Json = {key: fields[key] for key in SAME if fields.get(key) is not None}
    body["messages"] = [for_engine(message) for message in messages]
    functions = [tool for tool in tools if isinstance(tool, dict) and tool.get("type") == "function"]
    if functions:  # what only a provider can run is not offered to an engine that cannot
        body["tools"] = functions
    if fields.get("stream") is True:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def for_engine(message: Json) -> Json:
    """A message in normal form as chat engines take it: known keys, and text where there is text alone."""
    kept = {key: message[key] for key in MESSAGE_KEYS if key in message}
    parts = kept.get("content")
    if isinstance(parts, list):
        parts = [_engine_part(part) for part in parts]
        texts = [part["text"] for part in parts if _is_text(part)]
        if len(texts) == len(parts):
            kept["content"] = "\n".join(texts)
        else:
            kept["content"] = parts
    return kept


def cannot(what: str) -> InputError:
    """The refusal of a request that chat completions cannot express."""
    return InputError(
        "The request was not translated for the engine.",
        f"It speaks chat completions, which have no {what}.",
        "Leave that out, or ask an upstream that speaks this dialect.",
    )


def first_choice(reply: Any) -> Json:
    """The first choice of a chat reply or chunk; empty where there is none."""
    choices = reply.get("choices") if isinstance(reply, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else {}


def reasoning_of(message: Json) -> str:
    """The thoughts in a chat message or delta, under either name that servers use."""
    thoughts = message.get("reasoning_content") or message.get("reasoning")
    return thoughts if isinstance(thoughts, str) else ""


def error_of(raw: bytes) -> str:
    """The words of an engine's error reply, whatever its shape."""
    try:
        value = load_json(raw)
    except ValueError:
        return raw[:2000].decode("utf-8", "replace")
    error = value.get("error", value) if isinstance(value, dict) else value
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or error)[:2000]


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _engine_part(part: Any) -> Any:
    """A document whose source is text is text; other parts stay."""
    source = part.get("source") if isinstance(part, dict) else None
    if isinstance(source, dict) and source.get("type") == "text":
        return {"type": "text", "text": source.get("data")}
    return {k: v for k, v in part.items() if k != "citations"} if isinstance(part, dict) else part
