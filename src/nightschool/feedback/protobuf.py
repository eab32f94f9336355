"""OTLP in protobuf, as exporters send it by default, turned into its JSON form."""

from __future__ import annotations

import base64
from typing import Any

from nightschool.errors import InputError, MissingError
from nightschool.types import Json

IDS = ("traceId", "spanId", "parentSpanId")  # the JSON form of OTLP has them in hex, not in base64


def read_logs(raw: bytes) -> Json:
    """An export of log records. Raises: MissingError without the package, InputError for other bytes."""
    logs = _kind("logs")
    try:
        return _as_json(logs.FromString(raw))
    except _decode_error() as error:
        act = "Send what an exporter writes."
        raise InputError("The OTLP export was not taken.", "It is no protobuf of OTLP.", act) from error


def read_telemetry(raw: bytes) -> Json:
    """An export of spans or of log records; the bytes do not say which, but spans have ids of 16 bytes."""
    spans = _kind("trace")
    try:
        message = spans.FromString(raw)
    except _decode_error():
        return read_logs(raw)
    told = [span for resource in message.resource_spans for scope in resource.scope_spans for span in scope.spans]
    return _as_json(message) if told and all(len(span.trace_id) == 16 for span in told) else read_logs(raw)


def write_reply(reply: Json) -> bytes:
    """The answer to an export of log records."""
    from google.protobuf.json_format import ParseDict
    from opentelemetry.proto.collector.logs.v1 import logs_service_pb2

    return ParseDict(reply, logs_service_pb2.ExportLogsServiceResponse()).SerializeToString()


def _kind(what: str) -> Any:
    try:
        if what == "logs":
            from opentelemetry.proto.logs.v1.logs_pb2 import LogsData

            return LogsData
        from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

        return TracesData
    except ImportError as error:
        why = "Reading protobuf needs the package opentelemetry-proto."
        act = "pip install 'nightschool[otel]', or send JSON (http/json)."
        raise MissingError("The OTLP export was not taken.", why, act) from error


def _decode_error() -> type[Exception]:
    from google.protobuf.message import DecodeError

    return DecodeError


def _as_json(message: Any) -> Json:
    from google.protobuf.json_format import MessageToDict

    return _in_hex(MessageToDict(message))


def _in_hex(value: Any) -> Any:
    if isinstance(value, list):
        return [_in_hex(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: base64.b64decode(item).hex() if key in IDS and isinstance(item, str) else _in_hex(item)
        for key, item in value.items()
    }
