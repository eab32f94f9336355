"""OTLP: spans with their events, and log records that belong to spans.

Read are the protocol's own documents (`resourceSpans`, `resourceLogs`, one a line or a file) and single spans as
the Python SDK and Phoenix print them (`context`, `parent_id`, `attributes`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nightschool.imports.genai import call_of, feedback_of, kind_of
from nightschool.imports.reading import Raw
from nightschool.imports.said import trimmed
from nightschool.imports.spans import Span, Trace, conversation_of
from nightschool.imports.times import seconds_of
from nightschool.imports.values import Conversation, Format, Refused
from nightschool.store.tree import canonical
from nightschool.types import Json

NAME = "otlp"
TRACELOOP = "traceloop.association.properties"
SESSIONS = ("gen_ai.conversation.id", "session.id", "langfuse.session.id", f"{TRACELOOP}.session_id")
USERS = ("user.id", "enduser.id", "langfuse.user.id", f"{TRACELOOP}.user_id")
FAILED = (2, "STATUS_CODE_ERROR", "ERROR")


@dataclass(frozen=True, slots=True)
class Told:
    """A span as it was told, its attributes as plain values. Events are (name, attributes)."""

    trace: str
    id: str
    parent: str | None
    name: str
    scope: str
    start: float | None
    end: float | None
    attributes: Json
    events: tuple[tuple[str, Json], ...]
    error: str | None


def knows(record: Json) -> bool:
    wrapped = any(isinstance(record.get(key), list) for key in ("resourceSpans", "resource_spans", "resourceLogs"))
    return wrapped or _is_printed(record)


def group(record: Json) -> Sequence[str]:
    names = [span.trace for span in _spans(record)]
    names += [trace for trace, _, _, _ in _logs(record)]
    return tuple(dict.fromkeys(name for name in names if name))


def convert(raws: Sequence[Raw], trace_id: str) -> Iterator[Conversation]:
    """The trace of that id; its records may hold others as well."""
    told = {span.id: span for raw in raws for span in _spans(raw.value) if span.trace == trace_id}
    loose: list[tuple[str, Json]] = []
    for raw in raws:
        for trace, span_id, name, attributes in _logs(raw.value):
            if trace != trace_id:
                continue
            if span_id in told:
                span = told[span_id]
                told[span_id] = replace(span, events=(*span.events, (name, attributes)))
            else:
                loose.append((name, attributes))
    attributes = [span.attributes for span in told.values()]
    session = _first(attributes, SESSIONS)
    events = [(span, name, given) for span in told.values() for name, given in span.events]
    judgements = [found for span, name, given in events for found in feedback_of(name, given, trace_id, span.id)]
    judgements += [found for name, given in loose for found in feedback_of(name, given, trace_id, None)]
    content = [[span.id, span.attributes, span.events, span.start] for span in told.values()]
    trace = Trace(
        tool=NAME,
        id=trace_id,
        place=f"line {raws[0].line}",
        spans=tuple(map(_span, told.values())),
        session=session,
        user=_first(attributes, USERS),
        judgements=tuple(judgements),
        raw=canonical(content),
    )
    yield conversation_of(trace, content)


def _span(told: Told) -> Span:
    kind = kind_of(told.attributes, told.name)
    span = Span(
        id=told.id,
        parent=told.parent,
        kind=kind,
        scope=told.scope,
        start=told.start,
        end=told.end,
        agent=(told.attributes.get("gen_ai.agent.name") or told.name) if kind == "agent" else None,
    )
    if kind != "model":
        return span
    try:
        return replace(span, call=call_of(told.attributes, told.events, told.error))
    except Refused as refused:
        return replace(span, refused=str(refused))


def _spans(record: Json) -> Iterator[Told]:
    if _is_printed(record):
        yield _printed(record)
        return
    for resource in record.get("resourceSpans") or record.get("resource_spans") or ():
        for scope in _of(resource, "scopeSpans", "scope_spans") or ():
            name = str((scope.get("scope") or {}).get("name") or "")
            for span in scope.get("spans") or ():
                yield _wrapped(span, name)


def _wrapped(span: Json, scope: str) -> Told:
    status = span.get("status") or {}
    events = tuple((str(event.get("name")), _attributes(event.get("attributes"))) for event in span.get("events") or ())
    return Told(
        trace=str(_of(span, "traceId", "trace_id") or ""),
        id=str(_of(span, "spanId", "span_id") or ""),
        parent=_of(span, "parentSpanId", "parent_span_id") or None,
        name=str(span.get("name") or ""),
        scope=scope,
        start=_nanos(_of(span, "startTimeUnixNano", "start_time_unix_nano")),
        end=_nanos(_of(span, "endTimeUnixNano", "end_time_unix_nano")),
        attributes=_attributes(span.get("attributes")),
        events=events,
        error=str(status.get("message") or "The span failed.") if status.get("code") in FAILED else None,
    )


def _is_printed(record: Json) -> bool:
    context = record.get("context")
    return isinstance(context, dict) and "trace_id" in context and isinstance(record.get("attributes"), dict)


def _printed(record: Json) -> Told:
    status = record.get("status")
    code = status.get("status_code") if isinstance(status, dict) else record.get("status_code", status)
    told = status.get("description") if isinstance(status, dict) else record.get("status_message")
    events = record.get("events") or ()
    return Told(
        trace=str(record["context"]["trace_id"]),
        id=str(record["context"].get("span_id")),
        parent=record.get("parent_id") or None,
        name=str(record.get("name") or ""),
        scope=str((record.get("instrumentation_scope") or {}).get("name") or ""),
        start=seconds_of(record.get("start_time")),
        end=seconds_of(record.get("end_time")),
        attributes=record["attributes"],
        events=tuple((str(event.get("name")), event.get("attributes") or {}) for event in events),
        error=str(told or "The span failed.") if code in FAILED else None,
    )


def _logs(record: Json) -> Iterator[tuple[str, str, str, Json]]:
    """Trace, span, name and attributes of log records; a body that is an object counts as attributes."""
    for resource in record.get("resourceLogs") or record.get("resource_logs") or ():
        for scope in _of(resource, "scopeLogs", "scope_logs") or ():
            for log in _of(scope, "logRecords", "log_records") or ():
                given = _attributes(log.get("attributes"))
                name = _of(log, "eventName", "event_name") or given.get("event.name") or ""
                body = _value(log.get("body") or {})
                given = (body if isinstance(body, dict) else {"body": body}) | given
                trace, span = _of(log, "traceId", "trace_id"), _of(log, "spanId", "span_id")
                yield str(trace or ""), str(span or ""), str(name), given


def _attributes(given: Any) -> Json:
    if isinstance(given, dict):
        return given
    return {item["key"]: _value(item.get("value") or {}) for item in given or () if isinstance(item.get("key"), str)}


def _value(value: Json) -> Any:
    """An AnyValue as a plain one. Whole numbers may be written as texts."""
    if "intValue" in value or "int_value" in value:
        return int(_of(value, "intValue", "int_value"))
    for kind in ("stringValue", "doubleValue", "boolValue", "string_value", "double_value", "bool_value"):
        if kind in value:
            return value[kind]
    many = _of(value, "arrayValue", "array_value")
    if many is not None:
        return [_value(item) for item in many.get("values") or ()]
    fields = _of(value, "kvlistValue", "kvlist_value")
    return None if fields is None else _attributes(fields.get("values"))


def _nanos(value: Any) -> float | None:
    try:
        nanos = int(value)
    except (TypeError, ValueError):
        return None
    return nanos / 1e9 if nanos > 0 else None


def _first(attributes: Sequence[Json], names: Sequence[str]) -> str | None:
    for name in names:
        for given in attributes:
            if given.get(name) not in (None, ""):
                return str(trimmed(given[name]))
    return None


def _of(holder: Json, camel: str, snake: str) -> Any:
    return holder.get(camel, holder.get(snake))


FORMAT = Format(NAME, knows, convert, group)
