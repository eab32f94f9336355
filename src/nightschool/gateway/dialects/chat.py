"""OpenAI chat completions: the dialect of the engine contract, and the normal form of the store."""

from __future__ import annotations

from typing import Any

from nightschool.gateway.dialects.chat_parse import parse_plain, parse_stream
from nightschool.gateway.dialects.dialect import Asked, Dialect
from nightschool.gateway.dialects.sampler import resolve_sampler
from nightschool.gateway.dialects.sse import write_event
from nightschool.gateway.replies import RequestRefused, error_object
from nightschool.types import Json


def complaint(fields: Json) -> str | None:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return "`messages` is not a list of objects."
    return None


def asked(fields: Json, earlier: tuple[Json, ...] = ()) -> Asked:
    """Chat is the normal form: messages and tools stay as they came."""
    return Asked(earlier + tuple(fields.get("messages") or ()), _listed(fields.get("tools")), resolve_sampler(fields))


def refusal_event(error: RequestRefused) -> bytes:
    return write_event(error_object(error))


def _listed(tools: Any) -> tuple[Json, ...]:
    return tuple(tools) if isinstance(tools, list) else ()


CHAT = Dialect(
    name="openai.chat",
    word="chat",
    path="/v1/chat/completions",
    complaint=complaint,
    asked=asked,
    parse_plain=parse_plain,
    parse_stream=parse_stream,
    refusal=error_object,
    refusal_event=refusal_event,
    token_fields={"logprobs": True, "return_token_ids": True},
)
