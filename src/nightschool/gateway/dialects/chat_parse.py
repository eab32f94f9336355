"""The parsed copy of a chat completions reply, derived from its raw bytes alone.

The same answer gives the same messages, ids and log-probabilities whether it was streamed or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from nightschool.gateway.dialects.dialect import MISSHAPEN, ParsedReply
from nightschool.gateway.dialects.growing import Frame, Growing, finish, read_reply
from nightschool.gateway.dialects.sse import read_events
from nightschool.types import Json

# Texts inside the objects that a delta carries, which grow from piece to piece.
GROWING_TEXTS = frozenset({"text", "thinking", "signature", "summary", "data", "transcript", "arguments", "name"})


@dataclass(slots=True)
class Calls:
    """The tool calls of one choice. `latest` finds a call by the `index` of its pieces, an opaque key."""

    made: list[Json] = field(default_factory=list)
    latest: dict[Any, Json] = field(default_factory=dict)

    def add(self, piece: Json) -> int:
        """Take one piece; the position of the call it belongs to."""
        key = piece.get("index")
        if key is None:  # no index: a piece with an id begins a call, one without continues the last
            key = len(self.made) if piece.get("id") or not self.made else next(reversed(self.latest))
        call = self.latest.get(key)
        new = piece.get("function") or {}
        if call is None or (new.get("name") and piece.get("id") and call["id"] not in (None, piece["id"])):
            call = {"id": None, "type": "function", "function": {"name": "", "arguments": ""}}
            self.made.append(call)
        self.latest.pop(key, None)
        self.latest[key] = call
        call["id"] = call["id"] or piece.get("id")
        call["type"] = piece.get("type") or call["type"]
        function = call["function"]
        name = new.get("name") or ""
        if name != function["name"]:  # some bridges repeat the whole name in every piece
            function["name"] += name
        function["arguments"] += new.get("arguments") or ""
        call |= {k: v for k, v in piece.items() if k not in ("index", "id", "type", "function") and v is not None}
        return next(position for position, made in enumerate(self.made) if made is call)


def parse_plain(raw: bytes) -> ParsedReply:
    """A plain reply, complete or not."""
    reply = read_reply(raw)
    if isinstance(reply, ParsedReply):
        return reply
    growing: dict[int, Growing] = {}
    for index, choice in numbered(reply):
        message = choice.get("message")
        growing[index] = Growing(
            message=message if isinstance(message, dict) else {},
            finish_reason=choice.get("finish_reason"),
            token_ids=choice.get("token_ids"),
            logprobs=(choice.get("logprobs") or {}).get("content"),
        )
    return finish(growing, Frame(reply.get("prompt_token_ids"), reply.get("id"), reply.get("usage")))


def parse_stream(raw: bytes) -> ParsedReply:
    """The pieces of a streamed reply, put together; cut off or ended by an error, with what came before."""
    growing: dict[int, Growing] = {}
    calls: dict[int, Calls] = {}
    frame, done = Frame(), False
    for event in read_events(raw):
        if event.done:
            done = True
            break
        piece = frame.take(event) or {}
        try:
            for index, choice in numbered(piece):
                _grow(growing.setdefault(index, Growing()), choice, calls.setdefault(index, Calls()))
        except MISSHAPEN as error:  # boundary: an engine may send anything
            frame.fail("error", f"An event of the stream has another shape than openai.chat: {error!r}"[:500])
    for index, choice in growing.items():
        _close(choice, calls[index].made)
    if not done and not (growing and all(choice.finish_reason for choice in growing.values())):
        frame.fail("truncated", "The stream ended before its last event.")
    return finish(growing, frame)


def numbered(piece: Json) -> Iterator[tuple[int, Json]]:
    """The choices with their index, which is their place where none is told. Raises: ValueError for other shapes."""
    for position, choice in enumerate(piece.get("choices") or ()):
        index = position if (told := choice.get("index")) is None else told
        if not isinstance(index, int) or not isinstance(choice.get("finish_reason"), str | None):
            raise ValueError(f"choice {position} has an index or a reason to end that is none")
        yield index, choice


def _grow(growing: Growing, choice: Json, calls: Calls) -> None:
    growing.finish_reason = choice.get("finish_reason") or growing.finish_reason
    growing.add_tokens(choice.get("token_ids"), (choice.get("logprobs") or {}).get("content"))
    message = growing.message
    for key, value in (choice.get("delta") or {}).items():
        if key == "tool_calls":
            for call in value or ():
                calls.add(call)
        elif value is None or key == "role":
            message.setdefault(key, value)
        elif isinstance(value, str):
            message[key] = (message.get(key) or "") + value
        elif isinstance(value, list):
            message[key] = _longer(message.get(key) or [], value)
        elif isinstance(value, dict):
            message[key] = _fuller(message.get(key) or {}, value)
        else:
            message[key] = value


def _longer(items: list[Any], pieces: list[Any]) -> list[Any]:
    """A list to which a delta adds. Pieces of one reasoning block become one block again."""
    items = list(items)
    for piece in pieces:
        last = items[-1] if items else None
        if isinstance(piece, dict) and isinstance(last, dict) and _continues(last, piece):
            items[-1] = _fuller(last, piece)
        else:
            items.append(piece)
    return items


def _continues(block: Json, piece: Json) -> bool:
    """Whether `piece` goes on with `block`: by its index, or, without one, while a thought is not signed yet."""
    if block.get("type") != piece.get("type"):
        return False
    if "index" in piece or "index" in block:
        return block.get("index") == piece.get("index")
    return piece.get("type") == "thinking" and not (block.get("signature") and piece.get("thinking"))


def _fuller(held: Json, piece: Json) -> Json:
    """`held` with what `piece` adds: texts grow, everything else is as told last."""
    merged = dict(held)
    for key, value in piece.items():
        old = merged.get(key)
        if key in GROWING_TEXTS and isinstance(old, str) and isinstance(value, str):
            merged[key] = old + value
        elif value is not None or key not in merged:
            merged[key] = value
    return merged


def _close(growing: Growing, calls: list[Json]) -> None:
    """Give an assembled message the form it has in a plain reply."""
    growing.message.setdefault("role", "assistant")
    growing.message.setdefault("content", None)
    if calls:
        growing.message["content"] = growing.message["content"] or None
        growing.message["tool_calls"] = calls
