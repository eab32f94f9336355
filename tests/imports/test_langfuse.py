"""Langfuse exports: rows of observations, traces and scores in one file or several."""

import json
from collections import Counter

import pytest

from nightschool.types import Branch

USER = {"role": "user", "content": "hi"}


def observation(name, parent="", second=0, **more):
    return {
        "id": name, "trace_id": "t1", "parent_observation_id": parent, "type": "GENERATION", "name": name,
        "start_time": f"2026-01-01 00:00:{second:02}.000000", "end_time": f"2026-01-01 00:00:{second + 1:02}.500000",
        "input": json.dumps({"messages": [USER]}), "output": json.dumps({"role": "assistant", "content": name}),
        "provided_model_name": "gpt-x", "model_parameters": '{"temperature": 0.5}',
        "usage_details": {"input": 7, "output": 3}, "session_id": "s1", "user_id": "ann", "tags": ["blue"], **more,
    }  # fmt: skip


def score(name, data_type, **more):
    return {
        "id": f"score-{name}", "name": name, "trace_id": "t1", "observation_id": "", "value": 0, "string_value": None,
        "data_type": data_type, "source": "API", "timestamp": "2026-01-02 00:00:00.000000", "comment": "", **more,
    }  # fmt: skip


def test_observations(write, imported, sessions, rows):
    report = imported(
        write(
            "observations.jsonl",
            observation("root", type="SPAN", input="", output=""),  # an empty root: what was said is below it
            observation("g1", "root", 1),
            observation("g2", "root", 3),
            observation("tool", "root", 2, type="TOOL"),
        )
    )
    assert (report.format, report.taken) == ("langfuse", {"sessions": 1, "exchanges": 2})
    assert report.left_out == {"span of kind span": 1, "span of kind tool": 1}
    ((first, second),) = sessions()
    assert (first.messages, first.choices[0].message["content"], second.choices[0].message["content"]) == (
        (USER,), "g1", "g2",
    )  # fmt: skip
    assert (first.policy_version, first.principal, first.sampler.temperature) == ("gpt-x", "ann", 0.5)
    assert first.started_at == 1_767_225_601.0  # 2026-01-01 00:00:01 UTC
    row = rows("exchanges")[0]
    assert (row.duration_ms, row.usage) == (1500.0, {"prompt_tokens": 7, "completion_tokens": 3})
    assert rows("sessions")[0].external_key == "s1"
    assert rows("sessions")[0].tags == ["blue"]


def test_camel_case_traces_with_everything_inside(write, imported, sessions, rows):
    inner = {
        "id": "g1", "traceId": "t9", "parentObservationId": None, "type": "GENERATION", "model": "m",
        "startTime": "2026-01-01T00:00:00.000Z", "input": [USER], "output": {"answer": 5}, "usage": {"input": 1},
    }  # fmt: skip
    said = {"id": "x", "name": "quality", "traceId": "t9", "value": 0.5, "dataType": "NUMERIC", "source": "EVAL"}
    trace = {"id": "t9", "timestamp": "2026-01-01T00:00:00Z", "sessionId": None, "userId": "bob"}
    trace |= {"observations": [inner], "scores": [said]}
    assert imported(write("traces.json", trace)).taken == {"sessions": 1, "exchanges": 1, "feedback": 1}
    ((exchange,),) = sessions()
    assert exchange.choices[0].message == {"role": "assistant", "content": '{"answer": 5}'}  # structured output
    (said,) = rows("feedback")
    assert (said.target_kind, said.session_id, said.source) == ("session", exchange.session_id, "judge")


def test_scores_by_their_type(write, imported, rows):
    imported(write("observations.jsonl", observation("g1"), observation("g2", second=2)))
    report = imported(
        write(
            "scores.jsonl",
            score("quality", "NUMERIC", value=0.25, observation_id="g1", source="EVAL", comment="vague"),
            score("user-feedback", "BOOLEAN", value=1, comment="great"),
            score("hallucination", "BOOLEAN", value=1),
            score("topic", "CATEGORICAL", value=2, string_value="refund", source="ANNOTATION"),
            score("note", "TEXT", value=0, string_value="too long"),
            score("empty", "TEXT", value=0, string_value=""),
            score("whole", "NUMERIC", value=1, trace_id="", session_id="s1"),
        )
    )
    assert report.refused == {"a score without a value": 1}
    found = {row.name: row for row in rows("feedback")}
    assert {name: (row.kind, row.value, row.source) for name, row in found.items()} == {
        "quality": ("number", 0.25, "judge"),
        "user-feedback": ("thumb", True, "end_user"),
        "user-feedback comment": ("text", "great", "end_user"),
        "hallucination": ("category", "true", "code"),  # nobody says that yes is good
        "topic": ("category", "refund", "annotator"),
        "note": ("text", "too long", "code"),
        "whole": ("number", 1, "code"),
    }
    replies = {row.id: row for row in rows("exchanges")}
    ordered = sorted(replies.values(), key=lambda row: row.started_at)
    assert (found["quality"].exchange_id, found["quality"].evidence) == (ordered[0].id, "vague")
    assert found["topic"].exchange_id == ordered[1].id  # of a trace inside a session: its last reply
    assert (found["whole"].exchange_id, found["whole"].session_id) == (None, ordered[0].session_id)
    assert {row.state for row in found.values()} == {"matched"}


def test_scores_before_their_observations_wait(write, imported, rows):
    assert imported(write("scores.jsonl", score("quality", "NUMERIC", value=1, observation_id="g1"))).parked == 1
    imported(write("observations.jsonl", observation("g1")))
    assert [row.state for row in rows("feedback")] == ["matched"]


def test_a_score_that_was_changed_is_another_judgement(write, imported, rows):
    first = score("quality", "NUMERIC", value=1)
    imported(write("a.jsonl", first))
    assert imported(write("b.jsonl", first | {"environment": "x"})).merged["feedback"] == 1
    assert imported(write("c.jsonl", first | {"value": 0.5})).taken["feedback"] == 1
    assert len(rows("feedback")) == 2


@pytest.mark.parametrize(("latency", "unit"), [(1.5, "s"), (1500, "ms"), (77, "unknown")])
def test_the_unit_of_latency_is_found_and_told(write, imported, rows, latency, unit):
    report = imported(write("observations.jsonl", observation("g1", latency=latency)))
    assert report.notes == [f"latency is in {unit}; durations are taken from start and end times."]
    assert rows("exchanges")[0].duration_ms == 1500.0


def test_sub_agents_and_calls_told_twice(write, imported, sessions):
    report = imported(
        write(
            "observations.jsonl",
            observation("outer", type="AGENT"),
            observation("inner", "outer", 0, type="AGENT"),
            observation("g1", "outer", 0),
            observation("wrapper", "inner", 0, output="same"),
            observation("wrapped", "wrapper", 0, output="same"),
            observation("lost", "nobody", 5),
        )
    )
    assert (report.taken["exchanges"], report.merged["exchanges"]) == (3, 1)
    branches = Counter(exchange.branch for session in sessions() for exchange in session)
    assert branches == {Branch.MAIN: 2, Branch.SUB_AGENT: 1}


def test_failed_and_empty_calls(write, imported, sessions):
    report = imported(
        write(
            "observations.jsonl",
            observation("g1", output=None, level="ERROR", status_message="timed out"),
            observation("g2", output=""),
            observation("g3", input=None),
        )
    )
    assert report.refused == {"a call without output": 1, "a call without input": 1}
    ((exchange,),) = sessions()
    assert (exchange.status, exchange.choices) == ("error", ())
