"""Chat completions replies as OpenAI Responses, plain and streamed."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from nightschool.gateway.dialects.chat_parse import Calls
from nightschool.gateway.dialects.growing import NO_CHOICES, error_text, text
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

# What a response repeats of its request, and what stands there when the request was silent.
ECHOED = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
CUT_SHORT = {"length": "max_output_tokens", "content_filter": "content_filter"}
# Kind of item or part by its name here: item type, part type, key of the text, stem of the events' names.
TEXTS = {
    "reasoning": ("reasoning", "reasoning_text", "text", "response.reasoning_text"),
    "text": ("message", "output_text", "text", "response.output_text"),
    "refusal": ("message", "refusal", "refusal", "response.refusal"),
}


def refusal(_status: int, raw: bytes) -> bytes:
    """An engine's error reply; the OpenAI shape is the engine's own."""
    try:
        value = load_json(raw)
    except ValueError:
        value = None
    if isinstance(value, dict) and isinstance(value.get("error"), dict):
        return raw
    return write_json({"error": {"message": error_of(raw), "type": "api_error", "param": None, "code": None}})


@dataclass(slots=True)
class _Text:
    """An item of one text that is still growing, or has grown."""

    kind: str
    index: int
    pieces: list[str] = field(default_factory=list)


class ResponsesReading:
    """Turns a chat reply into a response. Texts follow each other; calls stay open until the reply's end."""

    def __init__(self, fields: Json, model: str) -> None:
        self._fields = fields
        self._model = model
        self._id: str | None = None
        self._created = time.time()
        self._calls = Calls()
        self._call_places: list[int] = []
        self._items: dict[int, Json] = {}  # the finished ones by output index
        self._text: _Text | None = None
        self._usage: Any = None
        self._reason: str | None = None  # empty once there is a choice that has not ended
        self._sequence = -1  # of the last event; -1 before the first
        self._over = False

    def plain(self, raw: bytes) -> bytes:
        reply = load_json(raw)
        choice = only_choice(reply)
        self._note(reply)
        message = choice.get("message") or {}
        for kind, said in _said(message):
            self._items[len(self._items)] = self._text_item(_Text(kind, len(self._items), [said]))
        for call in message.get("tool_calls") or ():
            self._items[len(self._items)] = self._call_item(call, len(self._items), "completed")
        self._usage, self._reason = reply.get("usage"), choice.get("finish_reason")
        return write_json(self._response(self._status()))

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
        out = b"" if self._sequence >= 0 else self._start(piece)
        if piece.get("error"):
            return out + self._fail(error_text(piece["error"]))
        self._usage = piece.get("usage") or self._usage
        return out + b"".join(map(self._take, first_choices(piece)))

    def end(self) -> bytes:
        if self._over:
            return b""
        return self._finish() if self._reason else self.failure(unreadable(BROKE_OFF))

    def failure(self, error: RequestRefused) -> bytes:
        begin = b"" if self._sequence >= 0 else self._start({})
        return begin + self._fail(str(error))

    def _note(self, reply: Json) -> None:
        created = reply.get("created")
        self._id = text(reply.get("id"))
        self._created = created if isinstance(created, int) else self._created

    def _start(self, piece: Json) -> bytes:
        self._note(piece)
        response = self._response("in_progress")
        return self._send("response.created", response=response) + self._send("response.in_progress", response=response)

    def _take(self, choice: Json) -> bytes:
        delta = choice.get("delta") or {}
        out = b"".join(self._say(kind, said) for kind, said in _said(delta))
        for piece in delta.get("tool_calls") or ():
            out += self._call(self._calls.add(piece), (piece.get("function") or {}).get("arguments") or "")
        self._reason = choice.get("finish_reason") or self._reason or ""
        return out

    def _say(self, kind: str, said: str) -> bytes:
        out = b""
        text = self._text
        if text is None or text.kind != kind:
            out = self._close_text()
            text = self._text = _Text(kind, self._next_index())
            out += self._send(
                "response.output_item.added", output_index=text.index, item=self._text_item(text, "in_progress")
            )
            out += self._part_event("added", text)
        text.pieces.append(said)
        return out + self._text_event("delta", text, delta=said)

    def _call(self, position: int, arguments: str) -> bytes:
        out = b""
        call = self._calls.made[position]
        if position == len(self._call_places):
            out = self._close_text()
            self._call_places.append(self._next_index())
            item = self._call_item(call, self._call_places[position], "in_progress") | {"arguments": ""}
            out += self._send("response.output_item.added", output_index=self._call_places[position], item=item)
        index = self._call_places[position]
        if arguments:
            where = {"output_index": index, "item_id": self._item_id("fc", index)}
            out += self._send("response.function_call_arguments.delta", **where, delta=arguments)
        return out

    def _finish(self) -> bytes:
        """The ends of what is open, and of the response."""
        if self._reason is None:
            return self.failure(unreadable(NO_CHOICES))
        self._over = True
        out = self._close_text()
        for call, index in zip(self._calls.made, self._call_places, strict=True):
            item = self._items[index] = self._call_item(call, index, "completed")
            where = {"output_index": index, "item_id": item["id"]}
            done = {"name": item["name"], "arguments": item["arguments"]}
            out += self._send("response.function_call_arguments.done", **where, **done)
            out += self._send("response.output_item.done", output_index=index, item=item)
        status = self._status()
        return out + self._send(f"response.{status}", response=self._response(status))

    def _fail(self, message: str) -> bytes:
        self._over = True
        response = self._response("failed") | {"error": {"code": "server_error", "message": message}}
        return self._send("response.failed", response=response)

    def _close_text(self) -> bytes:
        text, self._text = self._text, None
        if text is None:
            return b""
        item = self._items[text.index] = self._text_item(text)
        said = {TEXTS[text.kind][2]: "".join(text.pieces)}
        out = self._text_event("done", text, **said) + self._part_event("done", text)
        return out + self._send("response.output_item.done", output_index=text.index, item=item)

    def _next_index(self) -> int:
        return len(self._items) + len(self._call_places)

    def _item_id(self, prefix: str, index: int) -> str:
        return f"{prefix}_{self._id}_{index}"

    def _part(self, text: _Text) -> Json:
        _, part_type, key, _ = TEXTS[text.kind]
        rest: Json = {"annotations": [], "logprobs": []} if text.kind == "text" else {}
        return {"type": part_type, key: "".join(text.pieces), **rest}

    def _text_item(self, text: _Text, status: str = "completed") -> Json:
        content = [self._part(text)] if text.pieces else []
        if text.kind == "reasoning":
            return {"id": self._item_id("rs", text.index), "type": "reasoning", "summary": [], "content": content}
        head = {"id": self._item_id("msg", text.index), "type": "message", "role": "assistant"}
        return {**head, "status": status, "content": content}

    def _call_item(self, call: Json, index: int, status: str) -> Json:
        function = call.get("function") or {}
        head = {"id": self._item_id("fc", index), "type": "function_call", "status": status, "call_id": call.get("id")}
        return {**head, "name": function.get("name"), "arguments": arguments_of(function)}

    def _part_event(self, what: str, text: _Text) -> bytes:
        where = {"output_index": text.index, "item_id": self._text_item(text)["id"], "content_index": 0}
        return self._send(f"response.content_part.{what}", **where, part=self._part(text))

    def _text_event(self, what: str, text: _Text, /, **said: str) -> bytes:
        where = {"output_index": text.index, "item_id": self._text_item(text)["id"], "content_index": 0}
        logprobs: Json = {"logprobs": []} if text.kind == "text" else {}
        return self._send(f"{TEXTS[text.kind][3]}.{what}", **where, **said, **logprobs)

    def _send(self, kind: str, **said: Any) -> bytes:
        self._sequence += 1
        return write_event({"type": kind, "sequence_number": self._sequence, **said}, kind)

    def _status(self) -> str:
        return "incomplete" if self._reason in CUT_SHORT else "completed"

    def _response(self, status: str) -> Json:
        asked = {key: self._fields.get(key) for key in ECHOED}
        why = CUT_SHORT.get(self._reason or "") if status == "incomplete" else None
        return {
            "id": self._id,
            "object": "response",
            "created_at": int(self._created),
            "status": status,
            "model": self._model,
            "output": [self._items[index] for index in sorted(self._items)],
            "error": None,
            "incomplete_details": {"reason": why} if why else None,
            "usage": _usage(self._usage) if status in ("completed", "incomplete") else None,
            "store": False,
            **{key: default if asked[key] is None else asked[key] for key, default in ECHOED.items()},
        }


def _said(message: Json) -> list[tuple[str, str]]:
    """The texts of a chat message or delta, in the order of a response."""
    found = [
        ("reasoning", reasoning_of(message)),
        ("text", text_of(message.get("content"))),
        ("refusal", text_of(message.get("refusal"))),
    ]
    return [(kind, said) for kind, said in found if said]


def _usage(told: Any) -> Json | None:
    counts = count_usage(told)
    if counts is None:
        return None
    given, made = counts.get("prompt_tokens", 0), counts.get("completion_tokens", 0)
    return {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": counts.get("cached_tokens", 0)},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": counts.get("reasoning_tokens", 0)},
        "total_tokens": given + made,
    }
