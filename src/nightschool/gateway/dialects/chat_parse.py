"""The parsed copy of a chat completions exchange, derived from its raw bytes alone.

The same answer gives the same messages, ids and log-probabilities whether it was streamed or not.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from nightschool.gateway.dialects.chat_reply import EventSplitter, event_data
from nightschool.types import Choice, Json


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """What an engine's reply says. `error` is why it is no complete answer, `None` when it is one.

    `told_error` is an error that the engine sent inside its stream. `tokens_missing` is why the token ids or
    log-probabilities cannot be used, `None` when they can.
    """

    choices: tuple[Choice, ...] = ()
    prompt_ids: tuple[int, ...] | None = None
    upstream_id: str | None = None
    error: str | None = None
    told_error: str | None = None
    tokens_missing: str | None = None


@dataclass(slots=True)
class _Growing:
    """One choice while its pieces arrive. `calls` is keyed by the piece's `index`, an opaque key."""

    message: Json = field(default_factory=dict)
    calls: dict[Any, Json] = field(default_factory=dict)
    finish_reason: str | None = None
    token_ids: list[Any] | None = None
    logprobs: list[Any] | None = None


def load_json(raw: bytes | str) -> Any:
    """Parse JSON, with the slower library where the fast one is stricter (a lone surrogate's escape)."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return json.loads(raw)


def parse_plain(raw: bytes) -> ParsedReply:
    """A plain reply, complete or not."""
    try:
        reply = load_json(raw)
    except ValueError as error:
        return ParsedReply(error=f"The reply is not JSON: {error}")
    if not isinstance(reply, dict):
        return ParsedReply(error="The reply is not a JSON object.")
    if reply.get("error"):
        return ParsedReply(error=error_text(reply["error"]))
    growing: dict[int, _Growing] = {}
    for position, choice in enumerate(reply.get("choices") or ()):
        message = choice.get("message")
        growing[choice.get("index", position)] = _Growing(
            message=message if isinstance(message, dict) else {},
            finish_reason=choice.get("finish_reason"),
            token_ids=choice.get("token_ids"),
            logprobs=(choice.get("logprobs") or {}).get("content"),
        )
    return _finish(growing, reply.get("prompt_token_ids"), reply.get("id"), None)


def parse_stream(raw: bytes) -> ParsedReply:
    """The pieces of a streamed reply, put together; cut off or ended by an error, with what came before."""
    growing: dict[int, _Growing] = {}
    prompt_ids: list[int] | None = None
    upstream_id: str | None = None
    error: str | None = None
    told: str | None = None
    splitter = EventSplitter()
    done = False
    for event in [*splitter.feed(raw), splitter.rest]:
        data = event_data(event.decode("utf-8", "replace"))
        if data is None:
            continue
        if data.strip() == "[DONE]":
            done = True
            continue
        try:
            piece = load_json(data)
        except ValueError as problem:
            error = error or f"An event of the stream is not JSON: {problem}"
            continue
        if not isinstance(piece, dict):
            continue
        if piece.get("error"):
            told = told or error_text(piece["error"])
            error = error or told
        upstream_id = upstream_id or piece.get("id")
        prompt_ids = prompt_ids or piece.get("prompt_token_ids")
        for position, choice in enumerate(piece.get("choices") or ()):
            _grow(growing.setdefault(choice.get("index", position), _Growing()), choice)
    for choice in growing.values():
        _close(choice)
    if not done and not error and not all(choice.finish_reason for choice in growing.values()):
        error = "The stream ended before its last event."
    return replace(_finish(growing, prompt_ids, upstream_id, error), told_error=told)


def error_text(error: Any) -> str:
    """The words of an engine's error object."""
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or error)[:2000]


def _grow(growing: _Growing, choice: Json) -> None:
    if choice.get("finish_reason"):
        growing.finish_reason = choice["finish_reason"]
    if choice.get("token_ids") is not None:
        growing.token_ids = (growing.token_ids or []) + choice["token_ids"]
    content = (choice.get("logprobs") or {}).get("content")
    if content is not None:
        growing.logprobs = (growing.logprobs or []) + content
    for key, value in (choice.get("delta") or {}).items():
        if key == "tool_calls":
            for call in value or ():
                _grow_call(growing.calls, call)
        elif value is None or key == "role":
            growing.message.setdefault(key, value)
        elif isinstance(value, str):
            growing.message[key] = (growing.message.get(key) or "") + value
        elif isinstance(value, list):
            growing.message[key] = (growing.message.get(key) or []) + value
        else:
            growing.message[key] = value


def _grow_call(calls: dict[Any, Json], piece: Json) -> None:
    key = piece.get("index")
    if key is None:  # no index: a piece with an id begins a call, one without continues the last
        key = next(reversed(calls), 0) if calls and not piece.get("id") else len(calls)
    call = calls.setdefault(key, {"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
    call["id"] = call["id"] or piece.get("id")
    call["type"] = piece.get("type") or call["type"]
    function, new = call["function"], piece.get("function") or {}
    name = new.get("name") or ""
    if name != function["name"]:  # some bridges repeat the whole name in every piece
        function["name"] += name
    function["arguments"] += new.get("arguments") or ""


def _close(growing: _Growing) -> None:
    """Give an assembled message the form it has in a plain reply."""
    growing.message.setdefault("role", "assistant")
    growing.message.setdefault("content", None)
    if growing.calls:
        growing.message["content"] = growing.message["content"] or None
        growing.message["tool_calls"] = list(growing.calls.values())


def _finish(
    growing: dict[int, _Growing], prompt_ids: list[int] | None, upstream_id: str | None, error: str | None
) -> ParsedReply:
    if not growing and error is None:
        error = "The reply has no choices."
    missing = None if _are_ids(prompt_ids) and prompt_ids else "The engine gave no prompt ids."
    choices: list[Choice] = []
    for index, choice in sorted(growing.items()):
        ids, scores, reason = _tokens(choice)
        missing = missing or reason
        choices.append(Choice(index, choice.message, choice.finish_reason, ids, scores))
    return ParsedReply(
        choices=tuple(choices),
        prompt_ids=tuple(prompt_ids) if prompt_ids and _are_ids(prompt_ids) else None,
        upstream_id=upstream_id if isinstance(upstream_id, str) else None,
        error=error,
        tokens_missing=missing,
    )


def _tokens(choice: _Growing) -> tuple[tuple[int, ...] | None, tuple[float, ...] | None, str | None]:
    """Ids and log-probabilities of one choice; what is unusable is `None`, with the reason."""
    ids = tuple(choice.token_ids) if _are_ids(choice.token_ids) and choice.token_ids is not None else None
    entries = choice.logprobs
    if ids is None:
        return None, None, "The engine gave no token ids."
    if entries is None:
        return ids, None, "The engine gave no log-probabilities."
    scores = [entry.get("logprob") if isinstance(entry, dict) else None for entry in entries]
    if not all(isinstance(score, int | float) and math.isfinite(score) for score in scores):
        return ids, None, "A log-probability of the engine is not a finite number."
    if len(scores) != len(ids):
        return ids, None, f"The engine gave {len(ids)} token ids and {len(scores)} log-probabilities."
    return ids, tuple(float(score) for score in scores if score is not None), None


def _are_ids(ids: object) -> bool:
    return isinstance(ids, list) and all(isinstance(token, int) and not isinstance(token, bool) for token in ids)
