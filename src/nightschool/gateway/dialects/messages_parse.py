"""The parsed copy of an Anthropic Messages reply, in normal form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nightschool.gateway.dialects.dialect import ParsedReply
from nightschool.gateway.dialects.growing import error_text, read_reply, text
from nightschool.gateway.dialects.messages_form import assistant_message
from nightschool.gateway.dialects.sse import load_json, read_events
from nightschool.gateway.dialects.usage import whole
from nightschool.types import Choice, Json

NO_TOKENS = "This dialect carries no token ids."
FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
# Which text of a block each kind of delta makes longer.
GROWS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


def parse_plain(raw: bytes) -> ParsedReply:
    """A plain reply."""
    reply = read_reply(raw)
    if isinstance(reply, ParsedReply):
        return reply
    content = reply.get("content")
    if not isinstance(content, list):
        return ParsedReply(ending="error", error="The reply has no content.", upstream_id=text(reply.get("id")))
    return _parsed(content, reply, "ok", None)


@dataclass(slots=True)
class _Stream:
    """A message while its events arrive."""

    head: Json = field(default_factory=dict)
    blocks: dict[Any, Json] = field(default_factory=dict)
    inputs: dict[Any, str] = field(default_factory=dict)
    ended: bool = False
    failure: tuple[str, str] | None = None

    def take(self, event: Json) -> None:
        kind = event.get("type")
        if kind == "message_start":
            self.head = dict(event.get("message") or {})
        elif kind == "content_block_start":
            self.blocks[event.get("index")] = dict(event.get("content_block") or {})
        elif kind == "content_block_delta":
            self._grow(event.get("index"), event.get("delta") or {})
        elif kind == "message_delta":
            delta = {k: v for k, v in (event.get("delta") or {}).items() if v is not None}
            counts = {k: v for k, v in (event.get("usage") or {}).items() if v is not None}
            self.head |= {**delta, "usage": {**(self.head.get("usage") or {}), **counts}}  # counts are totals
        elif kind == "message_stop":
            self.ended = True
        elif kind == "error" or event.get("error"):
            self.failure = "upstream_error", error_text(event.get("error") or event)

    def _grow(self, index: Any, delta: Json) -> None:
        block = self.blocks.setdefault(index, {})
        kind = delta.get("type")
        if kind == "input_json_delta":
            self.inputs[index] = self.inputs.get(index, "") + (delta.get("partial_json") or "")
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]
        elif kind in GROWS:
            block[GROWS[kind]] = (block.get(GROWS[kind]) or "") + (delta.get(GROWS[kind]) or "")

    def content(self) -> list[Json]:
        """The blocks in order of arrival, with the inputs of calls put together."""
        return [
            block | {"input": _read_input(self.inputs[index])} if self.inputs.get(index) else block
            for index, block in self.blocks.items()
        ]


def parse_stream(raw: bytes) -> ParsedReply:
    """The events of a streamed reply, put together; cut off or ended by an error, with what came before."""
    stream = _Stream()
    broken: str | None = None
    for event in read_events(raw):
        broken = broken or event.broken
        if isinstance(event.value, dict):
            stream.take(event.value)
    if stream.failure is not None:
        ending, error = stream.failure
    elif broken is not None:
        ending, error = "error", broken
    elif stream.ended or stream.head.get("stop_reason"):
        ending, error = "ok", None
    else:
        ending, error = "truncated", "The stream ended before its last event."
    return _parsed(stream.content(), stream.head, ending, error)


def _parsed(content: list[Any], head: Json, ending: str, error: str | None) -> ParsedReply:
    reason = head.get("stop_reason")
    choice = Choice(0, assistant_message(content), FINISH.get(reason, reason) if isinstance(reason, str) else None)
    return ParsedReply(
        choices=(choice,) if content or head else (),
        upstream_id=text(head.get("id")),
        ending=ending,
        error=error,
        tokens_missing=NO_TOKENS,
        usage=_usage(head.get("usage")),
    )


def _usage(told: Any) -> Json | None:
    """The counts; what was read from or written to the provider's cache belongs to the prompt."""
    told = told if isinstance(told, dict) else {}
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
    new, read, written, made = (whole(told.get(name)) for name in names)
    if new is None and made is None:
        return None
    counts = {
        "prompt_tokens": None if new is None else new + (read or 0) + (written or 0),
        "completion_tokens": made,
        "cached_tokens": read,
        "cache_write_tokens": written,
    }
    return {name: count for name, count in counts.items() if count is not None}


def _read_input(pieces: str) -> Any:
    """The input of a call; text that is no JSON stays as it came."""
    try:
        return load_json(pieces)
    except ValueError:
        return pieces
