"""OTLP in three generations, OpenInference, evaluation events: one answer, one normal form."""

import json

import pytest

from nightschool.types import Branch

SYSTEM = {"role": "system", "content": "be brief"}
USER = {"role": "user", "content": "weather?"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"city": "Oslo"}'}}
ASKED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
TOLD = {"role": "tool", "tool_call_id": "call_1", "content": "rain"}
REPLY = {"role": "assistant", "content": "It rains."}

LOOK = {"type": "tool_call", "id": " call_1", "name": "look", "arguments": {"city": "Oslo"}}
PARTS = [
    {"role": "user", "parts": [{"type": "text", "content": "weather?"}]},
    {"role": "assistant", "parts": [LOOK]},
    {"role": "tool", "parts": [{"type": "tool_call_response", "id": "call_1 ", "response": "rain"}]},
]  # fmt: skip
CURRENT = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "m",
    "gen_ai.request.temperature": 0.5,
    "gen_ai.response.id": "resp-1",
    "gen_ai.conversation.id": "s1",
    "gen_ai.usage.input_tokens": 9,
    "gen_ai.system_instructions": [{"type": "text", "content": "be brief"}],
    "gen_ai.input.messages": PARTS,
    "gen_ai.output.messages": [
        {"role": "assistant", "parts": [{"type": "text", "content": "It rains."}], "finish_reason": "stop"}
    ],
}
OLD_EVENTS = [
    ("gen_ai.system.message", {"content": "be brief"}),
    ("gen_ai.user.message", {"content": "weather?"}),
    ("gen_ai.assistant.message", {"tool_calls": json.dumps([CALL]), "content": None}),
    ("gen_ai.tool.message", {"id": "call_1", "content": "rain"}),
    ("gen_ai.choice", {"index": 0, "finish_reason": "stop", "message": json.dumps({"content": "It rains."})}),
]
FLAT = {
    "llm.request.type": "chat",
    "gen_ai.request.model": "m",
    "gen_ai.prompt.0.role": "system",
    "gen_ai.prompt.0.content": "be brief",
    "gen_ai.prompt.1.role": "user",
    "gen_ai.prompt.1.content": "weather?",
    "gen_ai.prompt.2.role": "assistant",
    "gen_ai.prompt.2.tool_calls.0.id": "call_1",
    "gen_ai.prompt.2.tool_calls.0.name": "look",
    "gen_ai.prompt.2.tool_calls.0.arguments": '{"city": "Oslo"}',
    "gen_ai.prompt.3.role": "tool",
    "gen_ai.prompt.3.tool_call_id": "call_1",
    "gen_ai.prompt.3.content": "rain",
    "gen_ai.completion.0.role": "assistant",
    "gen_ai.completion.0.content": "It rains.",
    "gen_ai.completion.0.finish_reason": "stop",
}
INFERENCE = {
    "openinference.span.kind": "LLM",
    "llm.model_name": "m",
    "llm.invocation_parameters": '{"temperature": 0.5}',
    "llm.input_messages.0.message.role": "system",
    "llm.input_messages.0.message.content": "be brief",
    "llm.input_messages.1.message.role": "user",
    "llm.input_messages.1.message.content": "weather?",
    "llm.input_messages.2.message.role": "assistant",
    "llm.input_messages.2.message.tool_calls.0.tool_call.id": "call_1",
    "llm.input_messages.2.message.tool_calls.0.tool_call.function.name": "look",
    "llm.input_messages.2.message.tool_calls.0.tool_call.function.arguments": '{"city": "Oslo"}',
    "llm.input_messages.3.message.role": "tool",
    "llm.input_messages.3.message.tool_call_id": "call_1",
    "llm.input_messages.3.message.content": "rain",
    "llm.output_messages.0.message.role": "assistant",
    "llm.output_messages.0.message.content": "It rains.",
    "llm.finish_reason": "stop",
    "llm.tools.0.tool.json_schema": '{"type": "function"}',
    "llm.token_count.prompt": 9,
    "session.id": "s1",
}


def value(plain):
    if isinstance(plain, bool):
        return {"boolValue": plain}
    if isinstance(plain, int):
        return {"intValue": str(plain)}
    if isinstance(plain, float):
        return {"doubleValue": plain}
    if isinstance(plain, list):
        return {"arrayValue": {"values": [value(item) for item in plain]}}
    if isinstance(plain, dict):
        return {"kvlistValue": {"values": attributes(plain)}}
    return {} if plain is None else {"stringValue": plain}


def attributes(plain):
    return [{"key": key, "value": value(item)} for key, item in plain.items()]


def span(given, events=(), name="a", parent="", trace="t1", second=1, **more):
    return {
        "traceId": trace, "spanId": name, "parentSpanId": parent, "name": f"chat {name}",
        "startTimeUnixNano": f"{second}000000000", "endTimeUnixNano": f"{second}500000000",
        "attributes": attributes(given),
        "events": [{"name": event, "attributes": attributes(told)} for event, told in events], **more,
    }  # fmt: skip


def document(*spans, scope="lib"):
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {"name": scope}, "spans": list(spans)}]}]}


AS_TEXT = {k: json.dumps(v) if isinstance(v, list) else v for k, v in CURRENT.items()}
CONTENT = {k: v for k, v in CURRENT.items() if k.endswith(("messages", "instructions"))}
BARE = {k: v for k, v in CURRENT.items() if k not in CONTENT}


@pytest.mark.parametrize(
    "told",
    [
        document(span(CURRENT)),
        document(span(AS_TEXT)),
        document(span(BARE, [("gen_ai.client.inference.operation.details", CONTENT)])),
        document(span(BARE, OLD_EVENTS)),
        document(span(FLAT)),
        document(span(INFERENCE)),
        {"context": {"trace_id": "t1", "span_id": "a"}, "parent_id": None, "name": "chat", "attributes": INFERENCE,
         "start_time": "1970-01-01T00:00:01Z", "end_time": "1970-01-01T00:00:01.5Z", "status": {"status_code": "OK"}},
    ],
    ids=["current", "as text", "in an event", "events", "flat", "openinference", "printed"],
)  # fmt: skip
def test_every_generation_gives_the_same_exchange(write, imported, sessions, rows, told):
    report = imported(write("spans.jsonl", told))
    assert (report.format, report.taken, report.refused) == ("otlp", {"sessions": 1, "exchanges": 1}, {})
    ((exchange,),) = sessions()
    assert list(exchange.messages) == [SYSTEM, USER, ASKED | dict(exchange.messages[2]), TOLD]
    assert exchange.messages[2]["tool_calls"] == [CALL]
    assert exchange.messages[2].get("content") is None
    (choice,) = exchange.choices
    assert (choice.message, choice.finish_reason) == (REPLY, "stop")
    assert (exchange.policy_version, exchange.started_at) == ("m", 1.0)
    assert rows("exchanges")[0].duration_ms == 500.0


def test_content_in_log_records_finds_its_span(write, imported, sessions):
    log = {
        "traceId": "t1", "spanId": "a", "eventName": "gen_ai.client.inference.operation.details",
        "attributes": attributes(CONTENT), "body": {},
    }  # fmt: skip
    logs = {"resourceLogs": [{"scopeLogs": [{"logRecords": [log]}]}]}
    imported(write("both.jsonl", document(span(BARE)), logs))
    ((exchange,),) = sessions()
    assert (exchange.choices[0].message, exchange.upstream_id) == (REPLY, "resp-1")


def test_one_document_with_many_traces_in_many_lines(write, imported, sessions):
    other = CURRENT | {"gen_ai.response.id": "resp-2", "gen_ai.conversation.id": "s2"}
    root = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "helper"}  # said nothing itself
    report = imported(
        write(
            "spans.jsonl",
            document(span(CURRENT, parent="root"), span(other, trace="t2")),
            document(span(root, name="root")),
        )
    )
    assert report.taken == {"sessions": 2, "exchanges": 2}
    assert report.left_out == {"span of kind agent": 1}
    assert sorted(exchange.agent for (exchange,) in sessions()) == ["assistant", "helper"]
    assert imported(write("again.jsonl", document(span(CURRENT, parent="root")))).merged["exchanges"] == 1


def test_two_instrumentations_are_one_call_and_two_samples_are_two(write, imported):
    plain = {k: v for k, v in CURRENT.items() if k != "gen_ai.response.id"}
    twice = document(span(plain, name="a"))
    twice["resourceSpans"] += document(span(INFERENCE, name="b"), scope="other")["resourceSpans"]
    report = imported(write("a.json", twice))
    assert (report.taken["exchanges"], report.merged["exchanges"]) == (1, 1)
    samples = document(span(plain, name="a", trace="t2"), span(plain, name="b", trace="t2"))
    assert imported(write("b.json", samples)).taken["exchanges"] == 2


def test_several_replies_of_one_call(write, imported, sessions):
    given = CURRENT | {"gen_ai.output.messages": CURRENT["gen_ai.output.messages"] * 2}
    imported(write("a.json", document(span(given))))
    ((exchange,),) = sessions()
    assert [choice.index for choice in exchange.choices] == [0, 1]


def test_sub_agents(write, imported, sessions):
    outer = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "boss"}
    inner = {"openinference.span.kind": "AGENT", "gen_ai.agent.name": "helper"}
    imported(
        write(
            "a.json",
            document(
                span(outer, name="o"), span(inner, name="i", parent="o"),
                span(CURRENT, name="a", parent="o"), span(INFERENCE, name="b", parent="i", second=2),
            ),
        )
    )  # fmt: skip
    found = {exchange.agent: exchange.branch for session in sessions() for exchange in session}
    assert found == {"boss": Branch.MAIN, "helper": Branch.SUB_AGENT}


def test_evaluations_are_judgements_on_their_call(write, imported, rows):
    result = {
        "gen_ai.evaluation.name": "relevance", "gen_ai.evaluation.score.value": 0.75,
        "gen_ai.evaluation.score.label": "relevant", "gen_ai.evaluation.explanation": "on topic",
    }  # fmt: skip
    here = span(CURRENT, [("gen_ai.evaluation.result", result)])
    told = attributes(result | {"gen_ai.evaluation.name": "late", "gen_ai.response.id": "resp-1"})
    late = {"eventName": "gen_ai.evaluation.result", "traceId": "t9", "spanId": "", "attributes": told}
    report = imported(write("a.jsonl", document(here), {"resourceLogs": [{"scopeLogs": [{"logRecords": [late]}]}]}))
    assert (report.taken["feedback"], report.parked) == (4, 0)
    found = {row.name: (row.kind, row.value, row.source) for row in rows("feedback")}
    assert {row.evidence for row in rows("feedback")} == {"on topic"}
    assert {row.origin for row in rows("feedback")} == {row.id for row in rows("imports")}
    assert found["relevance"] == ("number", 0.75, "judge")
    assert found["late label"] == ("category", "relevant", "judge")
    assert len({row.exchange_id for row in rows("feedback")}) == 1


def test_what_is_lost_is_told(write, imported, sessions):
    empty = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
    failed = span(BARE | {"gen_ai.input.messages": PARTS}, name="f", status={"code": 2, "message": "overloaded"})
    report = imported(write("a.json", document(span(empty, name="e"), failed, span({"x": 1}, name="other"))))
    assert report.refused == {"a call without input": 1}
    ((exchange,),) = sessions()
    assert (exchange.status, exchange.choices) == ("error", ())
