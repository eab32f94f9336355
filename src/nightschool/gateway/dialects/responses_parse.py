"""The parsed copy of an OpenAI Responses reply, in normal form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nightschool.gateway.dialects.dialect import ParsedReply
from nightschool.gateway.dialects.growing import error_text, read_reply, text
from nightschool.gateway.dialects.responses_form import assistant_message
from nightschool.gateway.dialects.sse import read_events
from nightschool.gateway.dialects.usage import count_usage
from nightschool.types import Choice, Json

NO_TOKENS = "This dialect carries no token ids."
ENDS = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
# Where the pieces of an item go: the list of parts, the kind of part, and the key of its text.
PIECES = {
    "response.output_text.delta": ("content", "output_text", "text"),
    "response.refusal.delta": ("content", "refusal", "refusal"),
    "response.reasoning_text.delta": ("content", "reasoning_text", "text"),
    "response.reasoning_summary_text.delta": ("summary", "summary_text", "text"),
}
ARGUMENTS = {
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
}


def parse_plain(raw: bytes) -> ParsedReply:
    """A plain reply."""
    reply = read_reply(raw)
    if isinstance(reply, ParsedReply):
        return reply
    if not isinstance(reply.get("output"), list):
        return ParsedReply(ending="error", error="The reply has no output.", upstream_id=text(reply.get("id")))
    return _parsed(reply, reply["output"])


@dataclass(slots=True)
class _Stream:
    """A response while its events arrive. `items` is keyed by `output_index`, an opaque key."""

    response: Json = field(default_factory=dict)
    items: dict[Any, Json] = field(default_factory=dict)
    ended: bool = False
    failure: str | None = None

    def take(self, event: Json) -> None:
        kind, index = event.get("type"), event.get("output_index")
        if isinstance(event.get("response"), dict):
            self.response = event["response"]
            self.ended = self.ended or kind in ENDS
        if kind in ("response.output_item.added", "response.output_item.done"):
            self.items[index] = dict(event.get("item") or {})
        elif kind in PIECES:
            self._grow_part(self.items.setdefault(index, {"type": "message"}), event, PIECES[kind])
        elif kind in ARGUMENTS:
            item, key = self.items.setdefault(index, {"type": "function_call"}), ARGUMENTS[kind]
            item[key] = (item.get(key) or "") + (event.get("delta") or "")
        elif kind == "error" or event.get("error"):
            self.failure = error_text(event.get("error") or event)

    def _grow_part(self, item: Json, event: Json, place: tuple[str, str, str]) -> None:
        parts_key, part_kind, text_key = place
        parts: list[Json] = list(item.get(parts_key) or [])
        at = event.get("summary_index" if parts_key == "summary" else "content_index") or 0
        while len(parts) <= at:
            parts.append({"type": part_kind, text_key: ""})
        parts[at] = parts[at] | {text_key: (parts[at].get(text_key) or "") + (event.get("delta") or "")}
        item[parts_key] = parts


def parse_stream(raw: bytes) -> ParsedReply:
    """The last event holds the whole response; where it is missing or empty, its items are put together."""
    stream = _Stream()
    broken: str | None = None
    for event in read_events(raw):
        broken = broken or event.broken
        if isinstance(event.value, dict):
            stream.take(event.value)
    items = stream.response.get("output") or list(stream.items.values())
    if stream.failure is not None:
        return _parsed(stream.response, items, ("upstream_error", stream.failure))
    if not stream.ended:
        why = ("error", broken) if broken else ("truncated", "The stream ended before its last event.")
        return _parsed(stream.response, items, why)
    return _parsed(stream.response, items)


def _parsed(response: Json, items: list[Any], ending: tuple[str, str | None] | None = None) -> ParsedReply:
    """`ending` overrules the response's own status."""
    message = assistant_message([item for item in items if isinstance(item, dict)])
    choice = Choice(0, message, _finish_reason(response, message) if ending is None else None)
    status, error = _ending(response) if ending is None else ending
    return ParsedReply(
        choices=(choice,) if items or response else (),
        upstream_id=text(response.get("id")),
        ending=status,
        error=error,
        tokens_missing=NO_TOKENS,
        usage=count_usage(response.get("usage")),
    )


def _ending(response: Json) -> tuple[str, str | None]:
    status = response.get("status")
    if status == "incomplete":
        return "incomplete", f"The engine stopped early ({_why(response) or 'it did not say why'})."
    if status in ("failed", "cancelled"):
        return "upstream_error", error_text(response.get("error") or f"The response was {status}.")
    if status in ("queued", "in_progress"):
        return "error", "The response is not ready; it was asked for in the background."
    return "ok", None


def _finish_reason(response: Json, message: Json) -> str | None:
    if response.get("status") == "incomplete":
        why = _why(response)
        return "length" if why == "max_output_tokens" else why
    if response.get("status") not in ("completed", None):
        return None
    return "tool_calls" if message.get("tool_calls") else "stop"


def _why(response: Json) -> str | None:
    details = response.get("incomplete_details")
    return text(details.get("reason")) if isinstance(details, dict) else None
