"""A trace of spans as a conversation: which are calls of a model, whose they are, and which are told twice."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nightschool.imports.lists import blank_record
from nightschool.imports.values import Conversation, Judgement, Link, Turn, digest
from nightschool.store.matching import match_key
from nightschool.store.records import Caller, Record, Timing
from nightschool.types import Branch, Choice, Json, Sampler

NOT_TOLD = Sampler(constraints="not told")


@dataclass(frozen=True, slots=True)
class Call:
    """What a span says of one call of a model."""

    messages: tuple[Json, ...]
    choices: tuple[Choice, ...]
    tools: tuple[Json, ...] = ()
    model: str | None = None
    upstream_id: str | None = None
    sampler: Sampler = NOT_TOLD
    usage: Json | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """One span. `parent` is `None` for a root. `scope` names the instrumentation that wrote it.

    `kind` is model, agent, or what else it is (counted). `refused` is why a model's span cannot be read.
    """

    id: str
    parent: str | None
    kind: str
    scope: str = ""
    start: float | None = None
    end: float | None = None
    call: Call | None = None
    refused: str | None = None
    agent: str | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """The spans of one trace, and whose they are. `session` is `None` where the trace is a session of its own."""

    tool: str
    id: str
    place: str
    spans: tuple[Span, ...]
    session: str | None = None
    user: str | None = None
    tags: tuple[str, ...] = ()
    judgements: tuple[Judgement, ...] = ()
    raw: bytes = b""
    notes: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


def conversation_of(trace: Trace, content: object) -> Conversation:
    """One turn for each call of a model. `content` is what the trace was read from, for its digest."""
    spans = {span.id: span for span in trace.spans}
    calls = [span for span in spans.values() if span.call is not None]
    answers = {span.id: tuple(_answer(span)) for span in calls}
    alike: dict[tuple[bytes, ...], list[Span]] = defaultdict(list)
    for span in calls:
        alike[answers[span.id]].append(span)
    own = [span for span in calls if not answers[span.id] or not _told_again(span, alike[answers[span.id]], spans)]
    left_out = Counter(span.kind for span in spans.values() if span.call is None and span.refused is None)
    return Conversation(
        key=f"{trace.tool}:{trace.id}",
        digest=digest([trace.tool, content]),
        place=trace.place,
        turns=tuple(_turn(trace, span, spans) for span in sorted(own, key=lambda span: span.start or 0.0)),
        judgements=trace.judgements,
        raw=trace.raw,
        left_out=tuple(f"span of kind {kind}" for kind in left_out.elements()),
        repeated=len(calls) - len(own),
        refused=(*(span.refused for span in spans.values() if span.refused), *trace.refused),
        notes=trace.notes,
    )


def _turn(trace: Trace, span: Span, spans: dict[str, Span]) -> Turn:
    call = span.call
    if call is None:
        raise ValueError("only calls become turns")
    link: Link | None = None
    for message in call.messages:
        link = Link(message, link)
    agents = _agents_above(span, spans)
    name = next((above.agent for above in agents if above.agent), None)
    caller = Caller(
        agent=name or "",
        session=trace.session or trace.id,
        header_user=trace.user,
        external_key=trace.id,
        tags=trace.tags,
    )
    took = None if span.start is None or span.end is None else (span.end - span.start) * 1000
    record: Record = replace(
        blank_record(f"import.{trace.tool}", caller, call.model),
        choices=call.choices,
        tools=call.tools,
        sampler=call.sampler,
        usage=call.usage,
        upstream_id=call.upstream_id,
        timing=Timing(0.0, took),
        branch=Branch.SUB_AGENT if len(agents) > 1 else Branch.MAIN,
        status="error" if call.error else "ok",
        error=call.error,
    )
    return Turn(span.id, link, record, span.start)


def _above(span: Span, spans: dict[str, Span]) -> list[Span]:
    """The spans that a span is in, from the inside out; an orphan has none."""
    found: list[Span] = []
    seen = {span.id}
    at = spans.get(span.parent or "")
    while at is not None and at.id not in seen:
        seen.add(at.id)
        found.append(at)
        at = spans.get(at.parent or "")
    return found


def _agents_above(span: Span, spans: dict[str, Span]) -> list[Span]:
    """The agents at work, from the inside out; two instrumentations of one agent are one."""
    found: list[Span] = []
    for above in _above(span, spans):
        if above.kind == "agent" and not (found and found[-1].agent and found[-1].agent == above.agent):
            found.append(above)
    return found


def _told_again(span: Span, alike: Sequence[Span], spans: dict[str, Span]) -> bool:
    """Whether a span with the same answer tells the same call: one inside of it, or one by another instrumentation.

    Two equal calls by one instrumentation side by side are two samples.
    """
    for other in alike:
        if other is span or not _together(span, other):
            continue
        if any(above.id == span.id for above in _above(other, spans)):
            return True
        beside = other.scope != span.scope and other.parent == span.parent
        if beside and _asked(other) == _asked(span) and other.id < span.id:
            return True
    return False


def _answer(span: Span) -> list[bytes]:
    return [match_key(choice.message) for choice in span.call.choices] if span.call else []


def _asked(span: Span) -> list[bytes]:
    return [match_key(message) for message in span.call.messages] if span.call else []


def _together(one: Span, other: Span) -> bool:
    """Whether they overlap in time; where times are missing they may."""
    if one.start is None or one.end is None or other.start is None or other.end is None:
        return True
    return one.start <= other.end and other.start <= one.end
