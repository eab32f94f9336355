"""Evaluations as OpenTelemetry reports them: log records named `gen_ai.evaluation.result`, one item each."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nightschool.errors import InputError
from nightschool.feedback.values import NewFeedback, checked_value, wrong
from nightschool.types import FeedbackKind, Json, TargetKind

EVENT = "gen_ai.evaluation.result"
NS = 1e9


@dataclass(frozen=True, slots=True)
class Evaluations:
    """What a batch of log records holds: items, and a reason for each evaluation that is none of ours."""

    items: tuple[NewFeedback, ...]
    refused: tuple[str, ...]


def read_evaluations(document: Any) -> Evaluations:
    """Read an export request of logs in OTLP's JSON form. Other log records are passed over.

    Raises: InputError when it is no such request.
    """
    if not isinstance(document, dict) or not isinstance(document.get("resourceLogs", []), list):
        raise wrong("it is no OTLP export of logs (an object with `resourceLogs`)")
    items: list[NewFeedback] = []
    refused: list[str] = []
    for author, record in _records(document):
        facts = _flat(_body(record)) | _flat(attributes(record.get("attributes")))
        if EVENT not in (record.get("eventName"), facts.get("event.name"), record.get("name")):
            continue
        try:
            items.append(_item(facts, record, author))
        except InputError as error:
            refused.append(error.why)
    return Evaluations(tuple(items), tuple(refused))


def attributes(given: Any) -> Json:
    """Attributes by name: OTLP's list of typed pairs, a plain object, or either as a JSON text."""
    if isinstance(given, str):
        given = _parsed(given)
    if isinstance(given, list):
        pairs = [pair for pair in given if isinstance(pair, dict) and isinstance(pair.get("key"), str)]
        return {pair["key"]: any_value(pair.get("value")) for pair in pairs}
    return {str(key): any_value(value) for key, value in given.items()} if isinstance(given, dict) else {}


def any_value(given: Any) -> Any:
    """OTLP's AnyValue as a plain value; what is plain already stays."""
    if not isinstance(given, dict) or len(given) != 1:
        return given
    ((kind, value),) = given.items()
    if kind == "intValue":
        return int(value) if isinstance(value, str) and value.strip().lstrip("-").isdecimal() else value
    if kind == "doubleValue":
        return _double(value)
    if kind == "arrayValue":
        return [any_value(item) for item in _listed(value, "values")]
    if kind == "kvlistValue":
        return attributes(_listed(value, "values"))
    return value if kind in ("stringValue", "boolValue", "bytesValue") else given


def _records(document: Json) -> Iterator[tuple[str | None, Json]]:
    """Every log record with the name of the service that wrote it."""
    for resource in _objects(document.get("resourceLogs")):
        about = resource.get("resource")
        service = attributes(about.get("attributes")).get("service.name") if isinstance(about, dict) else None
        author = service.strip()[:256] if isinstance(service, str) and service.strip() else None
        for scope in _objects(resource.get("scopeLogs")):
            yield from ((author, record) for record in _objects(scope.get("logRecords")))


def _item(facts: Json, record: Json, author: str | None) -> NewFeedback:
    name = _text(facts, "gen_ai.evaluation.name")
    if name is None:
        raise wrong("an evaluation has no gen_ai.evaluation.name")
    score, label = facts.get("gen_ai.evaluation.score.value"), _text(facts, "gen_ai.evaluation.score.label")
    explanation = _text(facts, "gen_ai.evaluation.explanation")
    kind, value = FeedbackKind.TEXT, explanation
    if score is not None:
        kind, value = FeedbackKind.NUMBER, _double(score)
    elif label is not None:
        kind, value = FeedbackKind.CATEGORY, label
    if value is None:
        raise wrong(f"the evaluation {name!r} has neither a score nor a label nor an explanation")
    target_kind, target_id = _target(facts, name)
    evidence = {
        "label": label if kind == FeedbackKind.NUMBER else None,
        "explanation": explanation if kind != FeedbackKind.TEXT else None,
        "trace_id": record.get("traceId") or None,
        "span_id": record.get("spanId") or None,
    }
    call = _text(facts, "gen_ai.tool.call.id") if target_kind == TargetKind.EXCHANGE else None
    return NewFeedback(
        target_kind if call is None else TargetKind.TOOL_CALL,
        target_id,
        kind,
        checked_value(kind, value),
        name=name,
        source="judge",
        author=author,
        observed_at=_time(record),
        tool_call=call,
        evidence={key: fact for key, fact in evidence.items() if fact is not None} or None,
        origin="otel",
    )


def _target(facts: Json, name: str) -> tuple[TargetKind, str]:
    response, conversation = _text(facts, "gen_ai.response.id"), _text(facts, "gen_ai.conversation.id")
    if response is not None:
        return TargetKind.EXCHANGE, response
    if conversation is not None:
        return TargetKind.SESSION, conversation
    raise wrong(f"the evaluation {name!r} names neither gen_ai.response.id nor gen_ai.conversation.id")


def _time(record: Json) -> float | None:
    """When it happened, else when it was noticed. Units: nanoseconds in, seconds out; 0 says nothing."""
    for key in ("timeUnixNano", "observedTimeUnixNano"):
        given = record.get(key)
        if isinstance(given, int | str) and str(given).isascii() and str(given).isdecimal() and int(given):
            return int(given) / NS
    return None


def _body(record: Json) -> Json:
    """What the body says, where it is an object; exporters put the facts there, too."""
    body = any_value(record.get("body"))
    return attributes(body)


def _flat(value: Json, prefix: str = "") -> Json:
    """Nested objects as dotted names, so that {"gen_ai": {"evaluation": {"name": ...}}} reads like its flat form."""
    flat: Json = {}
    for key, item in value.items():
        if isinstance(item, dict) and item:
            flat |= _flat(item, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = item
    return flat


def _text(facts: Json, name: str) -> str | None:
    """A text without the stray spaces around it that real exporters send; nothing where it is empty."""
    value = facts.get(name)
    return value.strip()[:65_536] or None if isinstance(value, str) else None


def _double(value: Any) -> Any:
    """A finite number also where it came as text ("0.5"); else what was given, which then is no number."""
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError:
        return value
    return value if isinstance(number, float) and not math.isfinite(number) else number


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _listed(value: Any, key: str) -> list[Any]:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, list) else []


def _objects(value: Any) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
