"""What the gateway saw of one exchange, and the record that is derived from it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from nightschool.feedback.polling import POLLED
from nightschool.gateway.dialects.chat import CHAT
from nightschool.gateway.dialects.dialect import Dialect, ParsedReply
from nightschool.gateway.dialects.flags import suspicions
from nightschool.gateway.dialects.growing import error_text
from nightschool.gateway.dialects.sse import load_json
from nightschool.store.records import Caller, Record, Timing
from nightschool.types import Fidelity, Json, LogprobProvenance


@dataclass(slots=True)
class Stopwatch:
    """The time of one exchange, and the part of it that passed waiting for the engine. Units: seconds."""

    started_at: float = field(default_factory=time.time)
    start: float = field(default_factory=time.perf_counter)
    waited: float = 0.0
    first_byte: float | None = None
    overhead: float | None = None
    end: float | None = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The block's time is the engine's, not ours."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.waited += time.perf_counter() - begun

    def mark_first_byte(self) -> float:
        """The first byte is about to be sent; returns the overhead up to here in milliseconds."""
        self.first_byte = time.perf_counter() - self.start
        self.overhead = self.first_byte - self.waited
        return self.overhead * 1000

    def stop(self) -> None:
        """The exchange is over."""
        self.end = time.perf_counter()

    def timing(self) -> Timing:
        """Everything in milliseconds."""
        return Timing(
            started_at=self.started_at,
            duration_ms=None if self.end is None else (self.end - self.start) * 1000,
            first_byte_ms=None if self.first_byte is None else self.first_byte * 1000,
            overhead_ms=None if self.overhead is None else self.overhead * 1000,
        )


@dataclass(slots=True)
class Capture:
    """One exchange while it runs: the bytes of both sides as they pass. Nothing is derived here.

    `caller` reads who asked, of the request's headers and fields. `dialect` is the client's, `reply_dialect`
    the one in which the engine answered. `reply` holds what it sent, `is_stream` whether as server-sent events.
    `earlier` holds messages that the request named instead of carrying them. `failure` is what the gateway itself
    saw go wrong. `polled`: the reply asks for an opinion.
    """

    id: str
    caller: Callable[[], Caller]
    request_body: bytes
    fields: Json
    watch: Stopwatch
    policy: str
    dialect: Dialect = CHAT
    reply_dialect: Dialect = CHAT
    earlier: tuple[Json, ...] = ()
    http_status: int | None = None
    is_stream: bool = False
    reply: list[bytes] = field(default_factory=list)
    status: str = "ok"
    failure: str | None = None
    tenant: str = "default"
    polled: bool = False

    @property
    def size_bytes(self) -> int:
        return len(self.request_body) + sum(map(len, self.reply))


def derive_record(capture: Capture) -> Record:
    """The store's record of a capture. What is not complete is kept, and never trains (law 14)."""
    raw = b"".join(capture.reply)
    asked = capture.dialect.asked(capture.fields, capture.earlier)
    parsed = _parse(capture, raw)
    status, error = _outcome(capture, parsed)
    complete = status == "ok"
    exact = complete and parsed.tokens_missing is None
    scored = any(choice.behavior_logprobs is not None for choice in parsed.choices)
    return Record(
        id=capture.id,
        caller=_narrowed(capture.caller(), complete),
        timing=capture.watch.timing(),
        policy_version=capture.policy,
        request_body=capture.request_body,
        reply_body=raw if capture.http_status is not None else None,
        messages=asked.messages,
        tools=asked.tools,
        choices=parsed.choices,
        prompt_ids=parsed.prompt_ids,
        fidelity=Fidelity.EXACT if exact else Fidelity.TEXT,
        logprob_provenance=LogprobProvenance.ENGINE if scored else LogprobProvenance.NONE,
        sampler=asked.sampler,
        dialect=capture.dialect.name,
        streamed=capture.fields.get("stream") is True,
        status=status,
        http_status=capture.http_status,
        error=error,
        upstream_id=parsed.upstream_id,
        context_complete=asked.context_complete,
        fidelity_reason=parsed.tokens_missing if complete else None,
        flags=(*suspicions(asked.tools, parsed.choices), *((POLLED,) if capture.polled else ())),
        usage=_usage(status, parsed),
    )


def bare_record(capture: Capture, why: str) -> Record:
    """A record of the bytes alone, for a capture that could not be read. It never trains."""
    raw = b"".join(capture.reply)
    return Record(
        id=capture.id,
        caller=_narrowed(capture.caller(), False),
        timing=capture.watch.timing(),
        policy_version=capture.policy,
        request_body=capture.request_body,
        reply_body=raw if capture.http_status is not None else None,
        dialect=capture.dialect.name,
        streamed=capture.fields.get("stream") is True,
        status=capture.status if capture.status != "ok" else "error",
        http_status=capture.http_status,
        error=why,
    )


def _parse(capture: Capture, raw: bytes) -> ParsedReply:
    if capture.http_status is not None and capture.http_status >= 400:
        return ParsedReply(ending="error", error=_error_of(raw))
    if capture.http_status is None:
        return ParsedReply()
    dialect = capture.reply_dialect
    return dialect.read(raw, capture.is_stream)


def _outcome(capture: Capture, parsed: ParsedReply) -> tuple[str, str | None]:
    """Status and error. The engine's own word outweighs what the gateway saw: a client may leave on reading it.

    Official clients hang up on `[DONE]`; some engines, vLLM among them, end their answer a moment later.
    """
    refused = capture.http_status is not None and capture.http_status >= 400
    whole = parsed.ending == "ok" and bool(parsed.choices) and capture.status in ("client_closed", "aborted")
    if refused or whole or parsed.ending == "upstream_error" or capture.status == "ok":
        return parsed.ending, parsed.error
    return capture.status, capture.failure or parsed.error


def _usage(status: str, parsed: ParsedReply) -> Json | None:
    """The engine's counts; of a reply that broke off before they came, what can be counted, marked as such."""
    counted = [len(choice.completion_ids) for choice in parsed.choices if choice.completion_ids is not None]
    if parsed.usage is not None or status == "ok" or not counted:
        return parsed.usage
    return {"completion_tokens": sum(counted), "estimated": True}


def _narrowed(caller: Caller, allowed: bool) -> Caller:
    return replace(caller, training_allowed=caller.training_allowed and allowed)


def _error_of(raw: bytes) -> str:
    try:
        reply = load_json(raw)
    except ValueError:
        return raw[:2000].decode("utf-8", "replace")
    return error_text(reply.get("error", reply) if isinstance(reply, dict) else reply)
