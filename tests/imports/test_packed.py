"""Tables of conversations, and OTLP in protobuf: they become what the same thing in JSON becomes."""

from __future__ import annotations

import csv
import json
import sys

import pytest

from nightschool.errors import InputError, MissingError
from nightschool.feedback import protobuf

USER = {"role": "user", "content": "hi"}
REPLY = {"role": "assistant", "content": "hello"}
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"t": 5}'}}
ROWS = [
    {"messages": [USER, REPLY], "session": "a", "note": "short"},
    {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}], "session": "b"},
]


def stored(sessions) -> list:
    return [[*exchange.messages, exchange.choices[0].message] for [exchange] in sessions()]


def test_a_parquet_table_without_the_nulls_that_its_columns_put_in(imported, sessions, tmp_path):
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "chats.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    assert parquet.read_table(path).to_pylist()[0]["messages"][0].keys() == {"role", "content", "tool_calls"}
    assert imported(path).taken == {"sessions": 2, "exchanges": 2}
    assert stored(sessions) == [row["messages"] for row in ROWS]
    assert imported(path).taken.total() == 0


def test_a_csv_table_holds_messages_as_text(imported, sessions, tmp_path):
    path = tmp_path / "chats.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["messages", "session"])
        table.writerows([json.dumps(row["messages"]), row["session"]] for row in ROWS)
        table.writerow(["no JSON", "c"])
    report = imported(path, "messages")
    assert (report.taken, report.refused.total()) == ({"sessions": 2, "exchanges": 2}, 1)
    assert stored(sessions) == [row["messages"] for row in ROWS]


def test_a_table_of_something_else_is_told(imported, tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("key,value\na,1\n")
    with pytest.raises(InputError, match="no column `messages`, but key, value"):
        imported(path)


SPAN = {
    "traceId": "0af7651916cd43dd8448eb211c80319c",
    "spanId": "b7ad6b7169203331",
    "name": "chat m",
    "startTimeUnixNano": "1772366400500000000",
    "endTimeUnixNano": "1772366401500000000",
    "attributes": [
        {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
        {"key": "gen_ai.response.id", "value": {"stringValue": "resp-1"}},
        {"key": "gen_ai.conversation.id", "value": {"stringValue": "s1"}},
        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "9"}},
        {"key": "gen_ai.input.messages", "value": {"stringValue": json.dumps([{"role": "user", "parts": [
            {"type": "text", "content": "weather?"}]}])}},
        {"key": "gen_ai.output.messages", "value": {"stringValue": json.dumps([{"role": "assistant", "parts": [
            {"type": "text", "content": "It rains."}], "finish_reason": "stop"}])}},
    ],
}  # fmt: skip
EVENT = {
    "timeUnixNano": "1772366402500000000",
    "traceId": SPAN["traceId"],
    "spanId": SPAN["spanId"],
    "eventName": "gen_ai.evaluation.result",
    "attributes": [
        {"key": "gen_ai.evaluation.name", "value": {"stringValue": "tone"}},
        {"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": 0.5}},
    ],
}
TRACES = {"resourceSpans": [{"scopeSpans": [{"spans": [SPAN]}]}]}
LOGS = {"resourceLogs": [{"scopeLogs": [{"logRecords": [EVENT]}]}]}


def packed(document: dict) -> bytes:
    """As the official library writes it; it wants ids in base64 where OTLP's own JSON has hex."""
    import base64

    from google.protobuf.json_format import ParseDict
    from opentelemetry.proto.logs.v1.logs_pb2 import LogsData
    from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

    text = json.dumps(document)
    for given in (SPAN["traceId"], SPAN["spanId"]):
        text = text.replace(given, base64.b64encode(bytes.fromhex(given)).decode())
    kind = TracesData if "resourceSpans" in document else LogsData
    return ParseDict(json.loads(text), kind()).SerializeToString()


def test_protobuf_reads_as_the_json_it_stands_for():
    for document in (TRACES, LOGS):
        assert protobuf.read_telemetry(packed(document)) == document


@pytest.mark.parametrize("framed", [False, True])
def test_spans_and_evaluations_in_protobuf(framed, imported, sessions, rows, tmp_path):
    path = tmp_path / "traces.binpb"
    exports = [packed(TRACES), packed(LOGS)]
    if framed:
        path.write_bytes(b"".join(len(one).to_bytes(4) + one for one in exports))
        assert imported(path).taken == {"sessions": 1, "exchanges": 1, "feedback": 1}
        assert [(row.name, row.value) for row in rows("feedback")] == [("tone", 0.5)]
    else:
        path.write_bytes(exports[0])
        assert imported(path).taken == {"sessions": 1, "exchanges": 1}
    [[exchange]] = sessions()
    assert exchange.upstream_id == "resp-1"
    assert exchange.choices[0].message["content"] == "It rains."


def test_what_is_no_protobuf_is_told(imported, tmp_path):
    path = tmp_path / "traces.pb"
    path.write_bytes(b"\xff\xff")
    with pytest.raises(InputError, match="no protobuf of OTLP"):
        imported(path)


def test_without_its_package_protobuf_is_told_how_to_read(imported, tmp_path, monkeypatch):
    path = tmp_path / "traces.pb"
    path.write_bytes(packed(LOGS))
    monkeypatch.setitem(sys.modules, "opentelemetry.proto.trace.v1.trace_pb2", None)
    with pytest.raises(MissingError, match=r"nightschool\[otel\]"):
        imported(path)
