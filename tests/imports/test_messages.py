"""Chat messages as lines: conversations, pairs of request and response, and what is wrong with them."""

import json
import zlib

import pytest

from nightschool.errors import InputError
from nightschool.imports.taking import Wish, find_format, quiet, survey, take
from nightschool.store.database import Store
from nightschool.types import Fidelity, LogprobProvenance

USER = {"role": "user", "content": "hi"}
REPLY = {"role": "assistant", "content": "hello"}
MORE = {"role": "user", "content": "and?"}
CALL = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": '{"t":  "2025"}'}}
ASKED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
TOLD = {"role": "tool", "tool_call_id": "c", "content": ""}


def test_every_reply_is_a_call_on_what_stands_before_it(write, imported, sessions):
    messages = [USER, ASKED, TOLD, REPLY, MORE]
    report = imported(write("a.jsonl", {"messages": messages, "tools": [{"type": "function"}], "model": "m"}))
    assert report.taken == {"sessions": 1, "exchanges": 2}
    ((first, second),) = sessions()
    assert (first.messages, first.choices[0].message) == ((USER,), ASKED)
    assert (second.messages, second.choices[0].message) == ((USER, ASKED, TOLD), REPLY)
    assert second.choices[0].message == REPLY
    assert second.parent_exchange_id == first.id
    assert (second.fidelity, second.prompt_ids, second.policy_version) == (Fidelity.TEXT, None, "m")
    assert second.tools == ({"type": "function"},)
    assert second.flags == ("time of import",)


def test_null_absent_and_empty_content_and_strange_keys_stay_what_they_are(write, imported, sessions):
    strange = [
        {"role": "user", "content": "x", "x-mine": {"a": [None]}},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": None},
        {"role": "assistant", "content": None, "tool_calls": [CALL, CALL], "refusal": None},
        {"role": "tool", "tool_call_id": "c", "content": "1"},
        {"role": "tool", "tool_call_id": "c", "content": "2"},
        {"role": "assistant", "content": "", "reasoning_content": "hm"},
    ]
    imported(write("a.jsonl", {"messages": strange}))
    ((_, _, last),) = sessions()
    assert [*last.messages, last.choices[0].message] == strange


def test_samples_of_one_prompt_stay_apart_and_the_file_again_adds_nothing(write, imported, sessions):
    line = {"messages": [USER, REPLY]}
    path = write("a.jsonl", line, line, {"messages": [USER, REPLY, MORE, REPLY]})
    assert imported(path).taken == {"sessions": 3, "exchanges": 4}
    again = imported(path)
    assert (again.taken.total(), again.merged) == (0, {"sessions": 3, "exchanges": 4})
    other = imported(write("b.jsonl", line, {"messages": [MORE, REPLY]}))
    assert (other.taken["exchanges"], other.merged["exchanges"]) == (1, 1)
    assert len(sessions()) == 4


def test_a_named_conversation_that_has_grown_brings_only_what_is_new(write, imported, sessions):
    imported(write("a.jsonl", {"session": "s", "messages": [USER, REPLY]}))
    report = imported(write("b.jsonl", {"session": "s", "messages": [USER, REPLY, MORE, ASKED]}))
    assert (report.taken["exchanges"], report.merged["exchanges"]) == (1, 1)
    ((first, second),) = sessions()
    assert second.parent_exchange_id == first.id


def test_a_response_with_ids_and_log_probabilities_keeps_them(write, imported, sessions):
    response = {
        "id": "chatcmpl-9",
        "created": 1_700_000_000,
        "prompt_token_ids": [1, 2],
        "choices": [
            {"index": 0, "message": REPLY, "finish_reason": "stop", "token_ids": [7, 8],
             "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -0.25}]}}
        ],
        "usage": {"prompt_tokens": 2},
    }  # fmt: skip
    request = {"model": "m", "messages": [USER], "temperature": 0.5}
    path = write("a.jsonl", {"request": request, "response": response})
    assert imported(path).format == "messages"
    ((exchange,),) = sessions()
    assert (exchange.prompt_ids, exchange.choices[0].completion_ids) == ((1, 2), (7, 8))
    assert exchange.choices[0].behavior_logprobs == (-0.5, -0.25)
    assert (exchange.fidelity, exchange.logprob_provenance) == (Fidelity.EXACT, LogprobProvenance.ENGINE)
    assert (exchange.upstream_id, exchange.started_at, exchange.sampler.temperature) == ("chatcmpl-9", 1.7e9, 0.5)


def test_what_the_gateway_has_recorded_is_merged(write, imported, store):
    from nightschool.store.exchanges import Caller, Record, Timing, insert_exchange
    from nightschool.store.ids import new_id
    from nightschool.types import Choice

    record = Record(
        new_id(), Caller("shop"), Timing(1.0), "m", b"{}", messages=(USER,), choices=(Choice(0, REPLY, "stop"),),
        upstream_id="chatcmpl-9",
    )  # fmt: skip
    store.write(lambda conn: insert_exchange(conn, store.tenant, record))

    def pair(text):
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return {"request": {"messages": [USER]}, "response": {"id": "chatcmpl-9", "choices": [choice]}}

    assert imported(write("a.jsonl", pair("hello"))).merged["exchanges"] == 1
    assert imported(write("b.jsonl", pair("something else"))).taken["exchanges"] == 1  # an id that a mock gives to all


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"messages": []}, "no messages"),
        ({"messages": [USER]}, "no assistant message"),
        ({"messages": [USER, "x"]}, "a message is no object"),
        ({"messages": [{"content": "x"}, REPLY]}, "a message without a role"),
        ({"messages": [USER, REPLY], "tools": "{"}, "tools are no JSON"),
        ({"messages": [USER, REPLY], "tools": 3}, "tools are no list"),
        ({"other": 1}, "not of the format messages (TypeError)"),
        ([1], "a record is no object"),
    ],
)
def test_what_cannot_be_taken_is_counted_by_reason(write, imported, record, reason):
    report = imported(write("a.jsonl", {"messages": [USER, REPLY]}, record), "messages")
    assert report.refused == {reason: 1}
    assert report.places == {reason: ["line 2"]}
    assert (report.taken["exchanges"], report.lost_share) == (1, 0.5)


def test_a_dry_run_tells_the_same_and_stores_nothing(write, store, rows):
    path = write("a.jsonl", {"session": "s", "messages": [USER, REPLY]}, {"messages": [USER]})
    wish = Wish(None, None, "assistant")
    for there in (None, store):
        report = survey(path, wish, there, quiet)
        assert (report.taken["exchanges"], report.refused.total()) == (1, 1)
    assert rows("exchanges") == []
    take(path, wish, store, quiet)
    assert survey(path, wish, store, quiet).merged["exchanges"] == 1
    assert len(rows("imports")) == 1


def test_an_unknown_format_is_told(write):
    path = write("a.jsonl", {"messages": 3})
    with pytest.raises(InputError, match=r"format of a\.jsonl is not known"):
        find_format(path, None)
    with pytest.raises(InputError, match="no format 'nonsense'"):
        find_format(path, "nonsense")


def test_who_it_counts_for(write, imported, rows):
    line = {"messages": [USER, REPLY], "user": "u1", "agent": "theirs"}
    imported(write("a.jsonl", line))
    imported(write("b.jsonl", {"messages": [MORE, REPLY]}))
    imported(write("c.jsonl", {"messages": [MORE, MORE, REPLY], "agent": "theirs"}), agent="ours")
    assert sorted((row.agent, row.principal == "u1") for row in rows("sessions")) == [
        ("assistant", False),
        ("ours", False),
        ("theirs", True),
    ]
    assert {row.origin for row in rows("sessions")} == {row.id for row in rows("imports")}
    assert json.loads(json.dumps(rows("imports")[0].report))["taken"] == {"sessions": 1, "exchanges": 1}


def test_one_response_told_twice_in_one_log_is_taken_once(write, imported, sessions):
    def pair(answer, session):
        choice = {"index": 0, "message": answer, "finish_reason": "stop"}
        response = {"id": "chatcmpl-9", "choices": [choice]}
        return {"session": session, "request": {"messages": [USER]}, "response": response}

    report = imported(write("a.jsonl", pair(REPLY, "a"), pair(REPLY, "a") | {"note": "again"}, pair(ASKED, "a")))
    assert (report.taken["exchanges"], report.merged["exchanges"]) == (2, 1)


def test_secrets_are_taken_out_before_anything_is_stored(write, imported, sessions, rows, tmp_path):
    secret = "sk-proj-a1b2c3d4e5f6g7h8i9j0k1l2"
    line = {"messages": [{"role": "user", "content": f"use {secret}"}, REPLY, {"role": "user", "content": secret}]}
    assert imported(write("a.jsonl", line)).taken["exchanges"] == 1
    ((exchange,),) = sessions()
    assert exchange.messages[0]["content"] == "use [redacted:api_key]"
    assert secret.encode() not in zlib.decompress(rows("import_items")[0].raw)
    assert not any(secret.encode() in path.read_bytes() for path in tmp_path.glob("store.sqlite*"))
    assert imported(write("a.jsonl", line)).taken.total() == 0


def test_what_no_database_takes_is_refused_and_the_rest_is_stored(write, imported):
    report = imported(write("a.jsonl", {"messages": [USER, REPLY], "session": "\ud800"}, {"messages": [MORE, REPLY]}))
    assert report.taken["exchanges"] + report.refused.total() == 2
    assert report.taken["exchanges"] >= 1


def test_an_interrupted_import_goes_on_where_it_stopped(write, imported, rows, monkeypatch):
    turns = [message for _ in range(40) for message in (USER, REPLY)]  # 40 calls are three writes
    path = write("a.jsonl", {"messages": [*turns, MORE]}, {"messages": [MORE, REPLY]})
    written, calls = Store.write, []

    def until_the_third(store, write):
        calls.append(write)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return written(store, write)

    monkeypatch.setattr(Store, "write", until_the_third)
    with pytest.raises(KeyboardInterrupt):
        imported(path)
    assert len(rows("exchanges")) == 32
    assert rows("import_items") == []
    report = imported(path)
    assert (report.taken["exchanges"], report.merged["exchanges"]) == (9, 32)
    assert len({row.session_id for row in rows("exchanges")}) == 2
    assert (len(rows("import_items")), len(rows("sessions"))) == (2, 2)
    assert sum(row.num_exchanges for row in rows("sessions")) == 41
