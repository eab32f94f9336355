"""Replies of the OpenAI kind while their pieces arrive: choices, tokens and what stands beside them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from nightschool.gateway.dialects.dialect import ParsedReply
from nightschool.gateway.dialects.sse import Event, load_json
from nightschool.gateway.dialects.usage import count_usage
from nightschool.types import UNTOLD_LOGPROB, Choice, Json

NO_CHOICES = "The reply has no choices."


@dataclass(slots=True)
class Frame:
    """What a reply says beside its choices."""

    prompt_ids: Any = None
    upstream_id: Any = None
    usage: Any = None
    ending: str = "ok"
    error: str | None = None

    def fail(self, ending: str, error: str) -> None:
        """The first failure counts, but for an error that the engine told itself."""
        told = ending == "upstream_error" != self.ending
        if told or self.ending == "ok":
            self.ending, self.error = ending, error

    def take(self, event: Event) -> Json | None:
        """Note what an event says beside choices; its object, or `None` where it is none."""
        if event.broken:
            self.fail("error", event.broken)
        piece = event.value
        if not isinstance(piece, dict):
            return None
        if piece.get("error"):
            self.fail("upstream_error", error_text(piece["error"]))
        self.upstream_id = self.upstream_id or piece.get("id")
        self.prompt_ids = self.prompt_ids or piece.get("prompt_token_ids")
        self.usage = piece.get("usage") or self.usage
        return piece


@dataclass(slots=True)
class Growing:
    """One choice while its pieces arrive."""

    message: Json = field(default_factory=dict)
    finish_reason: str | None = None
    token_ids: list[Any] | None = None
    logprobs: list[Any] | None = None

    def add_tokens(self, ids: Any, entries: Any) -> None:
        """The ids and log-probability entries of one piece; `None` where it has none."""
        if ids is not None:
            self.token_ids = (self.token_ids or []) + ids
        if entries is not None:
            self.logprobs = (self.logprobs or []) + entries


def read_reply(raw: bytes) -> Json | ParsedReply:
    """The object of a plain reply, or what is to be recorded where there is none."""
    try:
        reply = load_json(raw)
    except ValueError as error:
        return ParsedReply(ending="error", error=f"The reply is not JSON: {error}")
    if not isinstance(reply, dict):
        return ParsedReply(ending="error", error="The reply is not a JSON object.")
    if reply.get("error"):
        return ParsedReply(ending="upstream_error", error=error_text(reply["error"]), upstream_id=text(reply.get("id")))
    return reply


def finish(growing: dict[int, Growing], frame: Frame) -> ParsedReply:
    """The choices in order of their index, with ids and log-probabilities where both are whole."""
    if not growing:
        frame.fail("error", NO_CHOICES)
    prompt_ids = frame.prompt_ids
    missing = None if are_ids(prompt_ids) and prompt_ids else "The engine gave no prompt ids."
    choices: list[Choice] = []
    for index, choice in sorted(growing.items()):
        ids, scores, reason = _tokens(choice)
        missing = missing or reason
        choices.append(Choice(index, choice.message, choice.finish_reason, ids, scores))
    return ParsedReply(
        choices=tuple(choices),
        prompt_ids=tuple(prompt_ids) if prompt_ids and are_ids(prompt_ids) else None,
        upstream_id=text(frame.upstream_id),
        ending=frame.ending,
        error=frame.error,
        tokens_missing=missing,
        usage=count_usage(frame.usage),
    )


def text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def error_text(error: Any) -> str:
    """The words of an engine's error object."""
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or error)[:2000]


def are_ids(ids: object) -> bool:
    return isinstance(ids, list) and all(isinstance(token, int) and not isinstance(token, bool) for token in ids)


def _tokens(choice: Growing) -> tuple[tuple[int, ...] | None, tuple[float, ...] | None, str | None]:
    """Ids and log-probabilities of one choice; what is unusable is `None`, with the reason."""
    ids = tuple(choice.token_ids) if are_ids(choice.token_ids) and choice.token_ids is not None else None
    entries = choice.logprobs
    if ids is None:
        return None, None, "The engine gave no token ids."
    if entries is None:
        return ids, None, "The engine gave no log-probabilities."
    scores = [entry.get("logprob") if isinstance(entry, dict) else None for entry in entries]
    if not all(isinstance(one, int | float) and math.isfinite(one) and one != UNTOLD_LOGPROB for one in scores):
        return ids, None, "A log-probability of the engine is not a finite number, or stands for one that is not told."
    if len(scores) != len(ids):
        return ids, None, f"The engine gave {len(ids)} token ids and {len(scores)} log-probabilities."
    return ids, tuple(float(score) for score in scores if score is not None), None
