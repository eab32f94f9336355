"""Agents reuse the ids of tool calls; in a file that others read, each call has its own and finds its result."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightschool.imports.calls import with_own_ids
from nightschool.imports.exporting import Order, export
from nightschool.imports.taking import Wish, quiet, take
from nightschool.types import Json


def made(*ids: str | None) -> Json:
    calls = [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def given_back(call_id: str | None, content: str = "") -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def ids(messages: list[Json]) -> list:
    """The ids of the calls of each reply, and the id that each result names, in order."""
    return [
        [call["id"] for call in message["tool_calls"]] if "tool_calls" in message else message["tool_call_id"]
        for message in messages
        if "tool_calls" in message or "tool_call_id" in message
    ]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # in turns 1 and 2
        ([made("c"), given_back("c"), made("c"), given_back("c")], [["c"], "c", ["c_2"], "c_2"]),
        # twice in one message: results in the order of the calls
        ([made("c", "c"), given_back("c"), given_back("c")], [["c", "c_2"], "c", "c_2"]),
        # the first was never answered
        ([made("c"), made("c"), given_back("c")], [["c"], ["c_2"], "c_2"]),
        # the second call's new name is a third call's own
        ([made("c"), made("c"), made("c_2"), given_back("c_2")], [["c"], ["c_2"], ["c_2_2"], "c_2_2"]),
        # none at all: by position
        ([made("", None), given_back(""), given_back(None)], [["call_1", "call_2"], "call_1", "call_2"]),
        # a result without a call, and a call that keeps its name
        ([given_back("x"), made("a", "b"), given_back("b"), given_back("a")], ["x", ["a", "b"], "b", "a"]),
    ],
)
def test_ids(given, expected):
    assert ids(with_own_ids(given)) == expected


@given(st.lists(st.lists(st.sampled_from(["a", "a", "b", "", None, "a_2", "call_1"]), min_size=1, max_size=3)))
def test_any_ids_become_unique_and_pairs_stay(turns):
    messages = [m for turn in turns for m in (made(*turn), *(given_back(i, str(n)) for n, i in enumerate(turn)))]
    renamed = with_own_ids(messages)
    calls = [call["id"] for message in renamed for call in message.get("tool_calls", ())]
    assert len(set(calls)) == len(calls)
    assert with_own_ids(renamed) == renamed
    assert with_own_ids(messages[:3]) == renamed[:3]
    for turn in turns:  # the results of a turn name its calls, each once
        new, renamed = renamed[0], renamed[1:]
        answers, renamed = renamed[: len(turn)], renamed[len(turn) :]
        assert sorted(a["tool_call_id"] for a in answers) == sorted(call["id"] for call in new["tool_calls"])


def pairs(messages: list[Json]) -> list[tuple[str, str]]:
    """Name of the function and content of the result for each pair, by turn and position alone."""
    found, calls = [], []
    for message in messages:
        if message.get("tool_calls"):
            calls = list(message["tool_calls"])
        elif message.get("role") == "tool" and calls:
            found.append((calls.pop(0)["function"]["name"], message["content"]))
    return found


def pairs_by_id(messages: list[Json]) -> list[tuple[str, str]]:
    names = {call["id"]: call["function"]["name"] for m in messages for call in m.get("tool_calls") or ()}
    answers = [message for message in messages if message.get("role") == "tool"]
    return [(names[message["tool_call_id"]], message["content"]) for message in answers]


def said(row: Json) -> list[Json]:
    return row.get("messages") or row["prompt"] + row["completion"]


@pytest.fixture
def exported(store, data, tmp_path):
    assert take(data / "tau_bench" / "gpt-4o-airline.json", Wish(None, "shop", "shop"), store, quiet).taken

    def rows(format: str) -> list[Json]:
        path = tmp_path / f"{format}.jsonl"
        with store.read() as conn:
            export(conn, store.tenant, Order(format, "shop", path, unjudged=True), lambda done, of: None)
        return [json.loads(line) for line in path.read_bytes().splitlines()]

    return rows


def test_reused_ids_of_real_agents_are_told_apart_in_every_file(exported, data):
    runs = [run["traj"] for run in json.loads((data / "tau_bench" / "gpt-4o-airline.json").read_bytes())]
    reused = sum(len(found) != len(set(found)) for found in map(call_ids, runs))
    assert reused == 49
    wrong = sum(pairs(run) != pairs_by_id(run) for run in runs)
    assert wrong > 0  # to pair by id misleads: what this is about
    rows = exported("messages")
    assert Counter(map(str, map(pairs, runs))) == Counter(str(pairs(row["messages"])) for row in rows)
    for conversation in [row["messages"] for row in rows] + list(map(said, exported("sft") + exported("kto"))):
        found = call_ids(conversation)
        assert len(found) == len(set(found))
        assert pairs(conversation) == pairs_by_id(conversation)
    for trajectory in exported("atif"):
        calls = {call["tool_call_id"]: n for n, step in enumerate(trajectory["steps"]) for call in calls_of(step)}
        assert len(calls) == sum(len(calls_of(step)) for step in trajectory["steps"])
        for number, step in enumerate(trajectory["steps"]):
            for result in (step.get("observation") or {}).get("results", ()):
                assert calls[result["source_call_id"]] == number


def calls_of(step: Json) -> list[Json]:
    return step.get("tool_calls") or []


def call_ids(messages: list[Json]) -> list[str]:
    return [call["id"] for message in messages for call in message.get("tool_calls") or ()]
