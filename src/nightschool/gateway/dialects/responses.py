"""OpenAI Responses."""

from __future__ import annotations

from typing import Any

from nightschool.gateway.dialects.dialect import Asked, Dialect, Translation
from nightschool.gateway.dialects.responses_form import is_complete, messages_of, tools_of
from nightschool.gateway.dialects.responses_parse import parse_plain, parse_stream
from nightschool.gateway.dialects.responses_reply import ResponsesReading, refusal
from nightschool.gateway.dialects.sampler import resolve_sampler
from nightschool.gateway.dialects.sse import write_event
from nightschool.gateway.dialects.translating import cannot, chat_fields
from nightschool.gateway.replies import RequestRefused, error_object
from nightschool.types import Json


def complaint(fields: Json) -> str | None:
    given = fields.get("input")
    if given is None and (fields.get("previous_response_id") or fields.get("conversation") or fields.get("prompt")):
        return None
    if isinstance(given, str) or (isinstance(given, list) and all(isinstance(item, dict) for item in given)):
        return None
    return "`input` is neither a text nor a list of objects."


def asked(fields: Json, earlier: tuple[Json, ...] = ()) -> Asked:
    sampler = resolve_sampler({**fields, "tool_choice": _tool_choice(fields), "response_format": _format(fields)})
    return Asked(tuple(messages_of(fields, earlier)), tuple(tools_of(fields)), sampler, is_complete(fields))


def to_chat(fields: Json, earlier: tuple[Json, ...]) -> Json:
    """The chat request that asks the same. Raises: InputError for what only a provider can do."""
    if fields.get("background"):
        raise cannot("responses in the background")
    if fields.get("prompt"):
        raise cannot("stored prompts")
    if not is_complete(fields):
        raise cannot("conversations or items that are kept by the provider")
    body = chat_fields(fields, messages_of(fields, earlier), tools_of(fields))
    body.pop("metadata", None)
    reasoning = fields.get("reasoning")
    renamed = {
        "max_tokens": fields.get("max_output_tokens"),
        "tool_choice": _tool_choice(fields) if "tools" in body else None,
        "response_format": _format(fields),
        "reasoning_effort": reasoning.get("effort") if isinstance(reasoning, dict) else None,
    }
    return body | {key: value for key, value in renamed.items() if value is not None}


def refusal_event(error: RequestRefused) -> bytes:
    told = {"code": error.code, "message": str(error), "param": None}
    return write_event({"type": "error", **told, "error": told | error.as_dict()}, "error")


def _tool_choice(fields: Json) -> Any:
    choice = fields.get("tool_choice")
    if isinstance(choice, dict):
        if choice.get("type") == "function":
            return {"type": "function", "function": {"name": choice.get("name")}}
        return choice.get("mode", "auto") if choice.get("type") == "allowed_tools" else None
    return choice


def _format(fields: Json) -> Any:
    """Structured output, which the dialect asks for in `text.format`."""
    text = fields.get("text")
    form = text.get("format") if isinstance(text, dict) else None
    if not isinstance(form, dict) or form.get("type") in (None, "text"):
        return None
    if form["type"] == "json_schema":
        return {"type": "json_schema", "json_schema": {key: value for key, value in form.items() if key != "type"}}
    return form


RESPONSES = Dialect(
    name="openai.responses",
    word="responses",
    path="/v1/responses",
    complaint=complaint,
    asked=asked,
    parse_plain=parse_plain,
    parse_stream=parse_stream,
    refusal=error_object,
    refusal_event=refusal_event,
    translation=Translation(to_chat, ResponsesReading, refusal),
)
