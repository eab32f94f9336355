"""What both translations into chat completions share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from nightschool.errors import InputError
from nightschool.gateway.dialects.chat_parse import numbered
from nightschool.gateway.dialects.dialect import MISSHAPEN, Reading
from nightschool.gateway.dialects.growing import NO_CHOICES, error_text
from nightschool.gateway.dialects.sse import load_json, write_json
from nightschool.gateway.replies import RequestRefused, refuse
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
BROKE_OFF = "Its stream ended before its last event."
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


def first_choices(piece: Json) -> list[Json]:
    """What a chunk says of the choice numbered 0."""
    return [choice for index, choice in numbered(piece) if index == 0]


def only_choice(reply: Json) -> Json:
    """The choice of a plain reply. Raises: RequestRefused (502) where it has none, with the engine's own words."""
    error = reply.get("error")
    choices = first_choices(reply)
    if error or not choices:
        raise unreadable(error_text(error) if error else NO_CHOICES)
    return choices[-1]


def reasoning_of(message: Json) -> str:
    """The thoughts in a chat message or delta, under either name that servers use."""
    return text_of(message.get("reasoning_content")) or text_of(message.get("reasoning"))


def text_of(content: Any) -> str:
    """The text of a content, of its text parts where it is a list. Raises: ValueError where it is neither."""
    if isinstance(content, list):
        return "".join(part["text"] for part in content if _is_text(part))
    if not isinstance(content, str | None):
        raise ValueError("the content is no text")
    return content or ""


def arguments_of(function: Json) -> str:
    """The argument text of a call in a plain reply; some servers write the object itself there."""
    arguments = function.get("arguments")
    return arguments if isinstance(arguments, str) else "" if arguments is None else write_json(arguments).decode()


def unreadable(why: str) -> RequestRefused:
    """The answer to a client whose engine sent what is no chat completion."""
    what, next_step = "The engine's reply was not translated.", "See the bytes it sent under the exchange's id."
    return refuse(502, "reply_unreadable", what, why, next_step)


class Guarded:
    """A reading that no bytes of an engine break: what has another shape ends the stream with the dialect's error."""

    def __init__(self, inner: Reading) -> None:
        self.fault: str | None = None
        self._inner = inner

    def plain(self, raw: bytes) -> bytes:
        try:
            return self._inner.plain(raw)
        except MISSHAPEN as error:  # boundary: an engine may send anything
            raise unreadable(_shape(error)) from error

    def event(self, raw: bytes) -> bytes:
        return self._tried(lambda: self._inner.event(raw))

    def end(self) -> bytes:
        return self._tried(self._inner.end)

    def failure(self, error: RequestRefused) -> bytes:
        return self._inner.failure(error)

    def _tried(self, read: Callable[[], bytes]) -> bytes:
        if self.fault is not None:
            return b""
        try:
            return read()
        except MISSHAPEN as error:  # boundary: an engine may send anything
            self.fault = _shape(error)
            return self._inner.failure(unreadable(self.fault))


def _shape(error: Exception) -> str:
    return f"It has another shape than chat completions ({error})."[:500]


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
