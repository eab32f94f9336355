"""Langfuse's exports: observations (with their traces and scores, in one file or in several) as rows.

Rows may be snake_case (the blob export) or camelCase (the API), a trace may hold its observations and scores.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from nightschool.feedback.values import NewFeedback
from nightschool.gateway.dialects.sampler import resolve_sampler
from nightschool.gateway.dialects.usage import count_usage
from nightschool.imports.reading import Raw
from nightschool.imports.said import choices_said, messages_said, tools_said, unpacked
from nightschool.imports.spans import NOT_TOLD, Call, Span, Trace, conversation_of
from nightschool.imports.times import seconds_of
from nightschool.imports.values import Conversation, Format, Judgement, Refused, exchange_id
from nightschool.types import FeedbackKind, Json, TargetKind

NAME = "langfuse"
SOURCES = {"ANNOTATION": "annotator", "EVAL": "judge"}
GOOD = re.compile(r"thumb|feedback|rating|helpful|correct|success|resolved|accept", re.IGNORECASE)
USERS = re.compile(r"user|thumb|feedback|rating", re.IGNORECASE)
UNIT_TOLERANCE = 0.5


def knows(record: Json) -> bool:
    return _is_observation(record) or _is_score(record) or _is_trace(record)


def group(record: Json) -> Sequence[str]:
    if _is_trace(record):
        return (f"trace {record['id']}",)
    trace = _of(record, "trace_id")
    if trace:
        return (f"trace {trace}",)
    session = _of(record, "session_id")
    return (f"session {session}",) if session else ()


def convert(raws: Sequence[Raw], _group: str) -> Iterator[Conversation]:
    records = [raw.value for raw in raws]
    traces = [record for record in records if _is_trace(record)]
    inside = [row for trace in traces for row in trace.get("observations") or () if isinstance(row, dict)]
    observations = [record for record in records if _is_observation(record)] + inside
    scores = [record for record in records if _is_score(record)]
    scores += [row for trace in traces for row in trace.get("scores") or () if isinstance(row, dict)]
    about = [*traces, *observations]
    trace_id = next((str(row["id"]) for row in traces), None) or _first(observations + scores, "trace_id")
    session = _first(about, "session_id")
    spans = tuple(_span(row) for row in observations)
    judgements: list[Judgement] = []
    refused: list[str] = []
    for score in scores:
        try:
            judgements += _judgements(score, trace_id, session, not about)
        except Refused as error:
            refused.append(str(error))
    trace = Trace(
        tool=NAME,
        id=trace_id or f"session {_first(scores, 'session_id')}",
        place=f"line {raws[0].line}",
        spans=spans if spans or not traces else (Span("trace", None, "trace without observations"),),
        session=session,
        user=_first(about, "user_id"),
        tags=_tags(about),
        judgements=tuple(judgements),
        raw=b"\n".join(raw.data for raw in raws),
        notes=tuple(filter(None, [_unit(observations)])),
        refused=tuple(refused),
    )
    yield conversation_of(trace, records)


def _is_observation(record: Json) -> bool:
    return bool(_of(record, "trace_id")) and "type" in record and bool(_of(record, "start_time"))


def _is_score(record: Json) -> bool:
    return "name" in record and "value" in record and bool(_of(record, "data_type"))


def _is_trace(record: Json) -> bool:
    """A trace has no trace above it. Empty roots are one: what was said is in the calls below."""
    told = ("observations", "session_id", "sessionId", "user_id", "userId", "release", "bookmarked")
    return "id" in record and "timestamp" in record and not _is_score(record) and any(key in record for key in told)


def _span(row: Json) -> Span:
    kind = str(row.get("type") or "").upper()
    span = Span(
        id=str(row["id"]),
        parent=_of(row, "parent_observation_id"),
        kind="agent" if kind == "AGENT" else kind.lower(),
        start=seconds_of(_of(row, "start_time")),
        end=seconds_of(_of(row, "end_time")),
        agent=row.get("name") if kind == "AGENT" else None,
    )
    if kind != "GENERATION":
        return span
    try:
        return replace(span, call=_call(row))
    except Refused as refused:
        return replace(span, refused=str(refused))


def _call(row: Json) -> Call:
    given, parameters = unpacked(row.get("input")), unpacked(_of(row, "model_parameters"))
    tools = _of(row, "tool_definitions") or (given.get("tools") if isinstance(given, dict) else None)
    sampler = resolve_sampler(parameters) if isinstance(parameters, dict) and parameters else NOT_TOLD
    error = None
    if str(row.get("level") or "").upper() == "ERROR":
        error = str(_of(row, "status_message") or "The log marks it as an error.")
    try:
        choices = choices_said(row.get("output"))
    except Refused:
        if error is None:
            raise
        choices = ()
    return Call(
        messages=tuple(messages_said(given)),
        choices=choices,
        tools=tools_said(tools),
        model=_of(row, "provided_model_name") or row.get("model") or None,
        sampler=sampler,
        usage=_usage(row),
        error=error,
    )


def _usage(row: Json) -> Json | None:
    told = unpacked(_of(row, "usage_details") or row.get("usage"))
    if not isinstance(told, dict):
        return None
    whole = {key: int(value) for key, value in told.items() if isinstance(value, int | float) and value >= 0}
    names = {"input": "prompt_tokens", "output": "completion_tokens"}
    return count_usage(whole | {names[key]: whole[key] for key in names if key in whole})


def _judgements(score: Json, trace_id: str | None, session: str | None, alone: bool) -> Iterator[Judgement]:
    """A score by its own data type: a text's value is 0 and says nothing.

    A trace's score is about its session where it is one of its own, else about its last reply. Where the scores
    stand `alone`, the store tells which.
    """
    name, kind, value = str(score["name"]), *_value(score)
    key = f"{NAME}/{score.get('id')}/{kind.value}/{value}"
    observation = _of(score, "observation_id")
    target_kind, target = TargetKind.SESSION, _of(score, "session_id") or trace_id or ""
    if trace_id and observation:
        target_kind, target = TargetKind.EXCHANGE, exchange_id(f"{NAME}:{trace_id}/{observation}")
    elif trace_id and (session or alone):
        target_kind, target = TargetKind.EXTERNAL_KEY, trace_id
    source = SOURCES.get(str(score.get("source")), "end_user" if USERS.search(name) else "code")
    at = seconds_of(_of(score, "timestamp"))
    author = _of(score, "author_user_id")
    comment = score.get("comment")
    comment = comment if isinstance(comment, str) and comment.strip() else None
    said_aloud = comment is not None and source == "end_user"  # a judge's comment is its reason
    item = NewFeedback(target_kind, target, kind, value, name, source, author, observed_at=at, key=key[:256])
    item = replace(item, evidence=None if said_aloud else comment)
    named = trace_id if target_kind == TargetKind.EXTERNAL_KEY and not session else None
    yield Judgement(item, session=named)
    if said_aloud:
        said = {"kind": FeedbackKind.TEXT, "value": comment, "name": f"{name} comment", "key": f"{key[:240]}/comment"}
        yield Judgement(replace(item, **said), session=named)


def _value(score: Json) -> tuple[FeedbackKind, Any]:
    """Kind and value. A yes-or-no score is a thumb where its name says that yes is good, else a category."""
    kind, value = str(_of(score, "data_type")).upper(), score.get("value")
    text = _of(score, "string_value")
    if kind == "NUMERIC":
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise Refused("a numeric score without a number")
        return FeedbackKind.NUMBER, value
    if kind == "BOOLEAN":
        yes = value in (1, True) or str(text).lower() == "true"
        if GOOD.search(str(score["name"])):
            return FeedbackKind.THUMB, yes
        return FeedbackKind.CATEGORY, str(yes).lower()
    found = {"CATEGORICAL": FeedbackKind.CATEGORY, "TEXT": FeedbackKind.TEXT, "CORRECTION": FeedbackKind.CORRECTION}
    said = text if text is not None else (value if isinstance(value, str) else None)
    if kind not in found or not said:
        raise Refused("a score of an unknown type" if kind not in found else "a score without a value")
    return found[kind], said


def _unit(observations: Sequence[Json]) -> str | None:
    """In what unit `latency` is: exports differ. It is compared with the times, which are what is used."""
    votes = {"s": 0, "ms": 0}
    told = 0
    for row in observations:
        start, end = seconds_of(_of(row, "start_time")), seconds_of(_of(row, "end_time"))
        latency = row.get("latency")
        if isinstance(latency, bool) or not isinstance(latency, int | float) or latency <= 0:
            continue
        told += 1
        if start is not None and end is not None and end > start:
            ratio = latency / (end - start)
            votes["s"] += abs(ratio - 1) < UNIT_TOLERANCE
            votes["ms"] += abs(ratio / 1000 - 1) < UNIT_TOLERANCE
    if not told:
        return None
    unit = next((unit for unit, count in votes.items() if count and count == max(votes.values())), "unknown")
    return f"latency is in {unit}; durations are taken from start and end times."


def _tags(rows: Sequence[Json]) -> tuple[str, ...]:
    tags = [tag for row in rows for tag in (unpacked(row.get("tags")) or ()) if isinstance(tag, str)]
    return tuple(dict.fromkeys(tags))


def _first(rows: Sequence[Json], name: str) -> str | None:
    return next((str(found) for row in rows if (found := _of(row, name))), None)


def _of(row: Json, name: str) -> Any:
    """A field by its snake_case name, also where it is written in camelCase. An empty text is nothing."""
    head, *rest = name.split("_")
    value = row.get(name, row.get(head + "".join(map(str.capitalize, rest))))
    return None if value == "" else value


FORMAT = Format(NAME, knows, convert, group)
