"""Chat completions replies as Anthropic Messages, plain and streamed."""

from __future__ import annotations

from typing import Any

from nightschool.gateway.dialects.chat_parse import Calls
from nightschool.gateway.dialects.growing import NO_CHOICES, error_text, text
from nightschool.gateway.dialects.messages_form import arguments_object
from nightschool.gateway.dialects.sse import load_json, read_event, write_event, write_json
from nightschool.gateway.dialects.translating import (
    BROKE_OFF,
    arguments_of,
    error_of,
    first_choices,
    only_choice,
    reasoning_of,
    text_of,
    unreadable,
)
from nightschool.gateway.dialects.usage import count_usage
from nightschool.gateway.replies import RequestRefused
from nightschool.types import Json

STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_value(status: int, message: str) -> Json:
    """The error object of the dialect."""
    kind = ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def refusal(status: int, raw: bytes) -> bytes:
    """An engine's error reply in the dialect's shape."""
    return write_json(error_value(status, error_of(raw)))


class MessagesReading:
    """Turns a chat reply into a message. Blocks of a stream follow each other: one is open at a time.

    The pieces of further tool calls wait until the first is complete, which only the reply's end tells.
    """

    def __init__(self, _fields: Json, model: str) -> None:
        self._model = model
        self._calls = Calls()
        self._open: str | None = None  # kind of the open block
        self._index = -1
        self._num_begun = 0  # calls whose block is open or was
        self._sent = 0  # characters of the open call's arguments
        self._tail = ""  # text that came while a call was open
        self._usage: Json = {}
        self._reason: tuple[str, str | None] | None = None
        self._begun = self._answered = False
        self._over = False

    def plain(self, raw: bytes) -> bytes:
        reply = load_json(raw)
        choice = only_choice(reply)
        message = choice.get("message") or {}
        content: list[Json] = []
        if thoughts := reasoning_of(message):
            content.append({"type": "thinking", "thinking": thoughts, "signature": ""})
        if said := _text(message):
            content.append({"type": "text", "text": said})
        for call in message.get("tool_calls") or ():
            function = call.get("function") or {}
            block = {"type": "tool_use", "id": call.get("id"), "name": function.get("name")}
            content.append(block | {"input": arguments_object(arguments_of(function))})
        reason, sequence = _stop(choice, bool(message.get("refusal")))
        head = self._head(reply.get("id"), _counts(reply.get("usage")))
        return write_json({**head, "content": content, "stop_reason": reason, "stop_sequence": sequence})

    def event(self, raw: bytes) -> bytes:
        event = read_event(raw)
        if event is None or self._over:
            return b""
        if event.done:
            return self._finish()
        if event.broken:
            raise ValueError(event.broken)
        piece = event.value
        if not isinstance(piece, dict):
            return b""
        if piece.get("error"):
            self._over = True
            return _named(error_value(500, error_text(piece["error"])))
        out = b"" if self._begun else self._start(piece)
        self._usage |= _counts(piece.get("usage"))
        return out + b"".join(map(self._take, first_choices(piece)))

    def end(self) -> bytes:
        if self._over:
            return b""
        return self._finish() if self._reason else self.failure(unreadable(BROKE_OFF))

    def failure(self, error: RequestRefused) -> bytes:
        self._over = True
        return _named(error_value(error.status, str(error)))

    def _head(self, upstream_id: Any, usage: Json) -> Json:
        head = {"id": text(upstream_id), "type": "message", "role": "assistant", "model": self._model, "content": []}
        counts = {"input_tokens": 0, "output_tokens": 0} | usage
        return {**head, "stop_reason": None, "stop_sequence": None, "usage": counts}

    def _start(self, piece: Json) -> bytes:
        self._begun = True
        prompt = piece.get("prompt_token_ids")
        usage = {"input_tokens": len(prompt)} if isinstance(prompt, list) else {}
        return _named({"type": "message_start", "message": self._head(piece.get("id"), usage)})

    def _take(self, choice: Json) -> bytes:
        self._answered = True
        delta = choice.get("delta") or {}
        out = b""
        if thoughts := reasoning_of(delta):
            out += self._text("thinking", thoughts)
        if said := _text(delta):
            out += self._text("text", said)
        for piece in delta.get("tool_calls") or ():
            self._calls.add(piece)
            out += self._call()
        if choice.get("finish_reason"):
            self._reason = _stop(choice, bool(delta.get("refusal")))
        return out

    def _text(self, kind: str, text: str) -> bytes:
        if self._open == "tool_use":
            self._tail += text if kind == "text" else ""
            return b""
        out = b"" if self._open == kind else self._begin(kind, _empty_block(kind))
        return out + self._delta({"type": f"{kind}_delta", kind: text})

    def _call(self) -> bytes:
        """What is new of the first call; the others wait."""
        call = self._calls.made[0]
        function = call["function"]
        out = b""
        if self._open != "tool_use":
            if not function["name"]:
                return b""
            out = self._begin("tool_use", _call_block(call))
            self._num_begun = 1
        new, self._sent = function["arguments"][self._sent :], len(function["arguments"])
        return out + (self._delta({"type": "input_json_delta", "partial_json": new}) if new else b"")

    def _begin(self, kind: str, block: Json) -> bytes:
        closed = self._close()
        self._open, self._index = kind, self._index + 1
        return closed + _named({"type": "content_block_start", "index": self._index, "content_block": block})

    def _delta(self, delta: Json) -> bytes:
        return _named({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        return _named({"type": "content_block_stop", "index": self._index})

    def _finish(self) -> bytes:
        """The blocks that waited, and the end."""
        if not self._answered:
            return self.failure(unreadable(NO_CHOICES))
        self._over = True
        out = self._close()
        if self._tail:
            out += self._text("text", self._tail)
        for call in self._calls.made[self._num_begun :]:
            out += self._begin("tool_use", _call_block(call))
            if arguments := call["function"]["arguments"]:
                out += self._delta({"type": "input_json_delta", "partial_json": arguments})
        out += self._close()
        reason, sequence = self._reason or ("end_turn", None)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        usage = {"output_tokens": 0} | self._usage
        return (
            out + _named({"type": "message_delta", "delta": delta, "usage": usage}) + _named({"type": "message_stop"})
        )


def _text(message: Json) -> str:
    """What the assistant says, a refusal included; the dialect has no other place for one."""
    return text_of(message.get("content")) or text_of(message.get("refusal"))


def _stop(choice: Json, refused: bool) -> tuple[str, str | None]:
    reason, sequence = choice.get("finish_reason"), choice.get("stop_reason")
    if reason == "stop" and isinstance(sequence, str):
        return "stop_sequence", sequence
    return "refusal" if refused else STOP_REASONS.get(reason or "stop", reason or "end_turn"), None


def _counts(usage: Any) -> Json:
    """A chat `usage` in the dialect's words; what was read from a cache counts apart from the input."""
    counts = count_usage(usage) or {}
    told: Json = {}
    if "prompt_tokens" in counts:
        cached = counts.get("cached_tokens", 0)
        told = {"input_tokens": counts["prompt_tokens"] - cached, "cache_read_input_tokens": cached}
    if "completion_tokens" in counts:
        told["output_tokens"] = counts["completion_tokens"]
    return told


def _empty_block(kind: str) -> Json:
    return {"type": "text", "text": ""} if kind == "text" else {"type": "thinking", "thinking": "", "signature": ""}


def _call_block(call: Json) -> Json:
    return {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": {}}


def _named(event: Json) -> bytes:
    return write_event(event, event["type"])
