"""Anthropic Messages."""

from __future__ import annotations

from typing import Any

from nightschool.gateway.dialects.dialect import Asked, Dialect, Translation
from nightschool.gateway.dialects.messages_form import messages_of, tools_of
from nightschool.gateway.dialects.messages_parse import parse_plain, parse_stream
from nightschool.gateway.dialects.messages_reply import MessagesReading, error_value, refusal
from nightschool.gateway.dialects.sampler import resolve_sampler
from nightschool.gateway.dialects.sse import write_event
from nightschool.gateway.dialects.translating import chat_fields
from nightschool.gateway.replies import RequestRefused
from nightschool.types import Json

TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def complaint(fields: Json) -> str | None:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return "`messages` is not a list of objects."
    return None


def asked(fields: Json, earlier: tuple[Json, ...] = ()) -> Asked:
    sampler = resolve_sampler({**fields, "tool_choice": _tool_choice(fields), "response_format": _format(fields)})
    return Asked((*earlier, *messages_of(fields)), tuple(tools_of(fields)), sampler)


def to_chat(fields: Json, earlier: tuple[Json, ...]) -> Json:
    """The chat request that asks the same."""
    body = chat_fields(fields, [*earlier, *messages_of(fields)], tools_of(fields))
    metadata = body.pop("metadata", None)
    if isinstance(metadata, dict) and isinstance(metadata.get("user_id"), str):
        body["user"] = metadata["user_id"]
    choice = fields.get("tool_choice")
    if isinstance(choice, dict) and choice.get("disable_parallel_tool_use"):
        body["parallel_tool_calls"] = False
    renamed = {
        "max_tokens": fields.get("max_tokens"),
        "stop": fields.get("stop_sequences"),
        "tool_choice": _tool_choice(fields) if "tools" in body else None,
        "response_format": _format(fields),
    }
    return body | {key: value for key, value in renamed.items() if value is not None}


def error_object(error: RequestRefused) -> Json:
    """The dialect's error object; what, why and next also stand alone."""
    value = error_value(error.status, str(error))
    value["error"] |= {"code": error.code, **error.as_dict()}
    return value


def refusal_event(error: RequestRefused) -> bytes:
    return write_event(error_object(error), "error")


def _tool_choice(fields: Json) -> Any:
    choice = fields.get("tool_choice")
    if not isinstance(choice, dict):
        return None
    if choice.get("type") == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return TOOL_CHOICES.get(choice.get("type", ""))


def _format(fields: Json) -> Any:
    """Structured output, which the dialect asks for in `output_config.format` (earlier: `output_format`)."""
    config = fields.get("output_config")
    asked_for = (config.get("format") if isinstance(config, dict) else None) or fields.get("output_format")
    if not isinstance(asked_for, dict) or asked_for.get("type") != "json_schema":
        return None
    return {"type": "json_schema", "json_schema": {"name": "reply", "schema": asked_for.get("schema"), "strict": True}}


MESSAGES = Dialect(
    name="anthropic.messages",
    word="messages",
    path="/v1/messages",
    complaint=complaint,
    asked=asked,
    parse_plain=parse_plain,
    parse_stream=parse_stream,
    refusal=error_object,
    refusal_event=refusal_event,
    translation=Translation(to_chat, MessagesReading, refusal),
)
