"""What is written out comes back as it was, and what may not train is not written to train from."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from atif import Trajectory
from databases import ON_BOTH
from exported import CALL, MORE, REPLY, SYSTEM, TOOL, USER, put, say, trained_on, written
from hypothesis import given, settings
from hypothesis import strategies as st

from nightschool.errors import InputError, MissingError, RefusedError
from nightschool.feedback.record import insert_feedback
from nightschool.feedback.values import NewFeedback
from nightschool.imports.calls import with_own_ids
from nightschool.imports.exporting import Order, export
from nightschool.imports.taking import Wish, quiet, take
from nightschool.store.database import Store
from nightschool.store.exchanges import session_exchanges
from nightschool.store.ids import new_id
from nightschool.types import (
    Branch,
    Choice,
    FeedbackKind,
    Fidelity,
    LogprobProvenance,
    Sampler,
    Split,
    TargetKind,
)  # fmt: skip

TEXT = st.text(max_size=6)
KEYS = st.sampled_from(["x-mine", "name", "refusal"])
ARGUMENTS = st.sampled_from(['{"t": 5}', '{"t":"5"}', "", "{", "[1]", "null", '{"ü": [null]}'])
CALLS = st.lists(
    st.builds(
        lambda name, arguments, id: {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}},
        TEXT, ARGUMENTS, st.sampled_from(["a", "a", "b", ""]),
    ),
    min_size=1, max_size=2,
)  # fmt: skip
PARTS = st.sampled_from(
    [
        {"type": "text", "text": "part"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": "x.png", "detail": "low"}},
        {"type": "file", "file": {"file_id": "f"}},
    ]
)
CONTENT = st.none() | TEXT | st.lists(PARTS, max_size=2)
EXTRA = st.dictionaries(KEYS, st.none() | st.integers() | TEXT, max_size=2)


@st.composite
def conversation(draw):
    """Messages with replies: null, absent and empty contents, reused ids, arguments that are no objects."""
    messages = [SYSTEM] if draw(st.booleans()) else []
    messages += [{"role": "user", "content": draw(TEXT)}]
    for _ in range(draw(st.integers(1, 3))):
        reply = {"role": "assistant"} | draw(EXTRA)
        if draw(st.booleans()):
            reply["content"] = draw(CONTENT)
        if draw(st.booleans()):
            reply["tool_calls"] = draw(CALLS)
        messages.append(reply)
        for call in reply.get("tool_calls", ()):
            call_id = draw(st.sampled_from([call["id"], call["id"], "nobody", None]))
            answer = {"role": "tool", "tool_call_id": call_id, "content": draw(CONTENT)} | draw(EXTRA)
            messages.append(answer)
        if draw(st.booleans()):
            messages.append({"role": "user", "content": draw(TEXT)} | draw(EXTRA))
    return messages


@pytest.fixture(scope="module", params=ON_BOTH)
def shared(request, new_place, tmp_path_factory) -> Iterator[Store]:
    """One database for many tenants."""
    folder = tmp_path_factory.mktemp("shared")
    with new_place(request.param, folder) as place, Store.open(place) as opened:
        yield opened


@pytest.mark.parametrize("format", ["messages", "atif"])
@settings(max_examples=8)
@given(lines=st.lists(conversation(), min_size=1, max_size=6), with_tools=st.booleans())
def test_out_and_in_and_out_again_is_the_same_file(shared, tmp_path_factory, format, lines, with_tools):
    folder = tmp_path_factory.mktemp("there")
    tools = {"tools": [TOOL]} if with_tools else {}
    source = folder / "in.jsonl"
    rows = [{"messages": line, "session": str(number)} | tools for number, line in enumerate(lines)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    files = []
    for number in range(3):
        store = shared.scoped(new_id())
        report = take(source, Wish(None, "shop", "shop"), store, quiet)
        assert report.refused.total() == 0
        source = folder / f"out{number}.jsonl"
        rows = written(store, source, format)
        if format == "atif":
            assert all(Trajectory.model_validate(row) for row in rows)  # the published model knows no other fields
        else:
            assert [row["messages"] for row in rows] == list(map(with_own_ids, lines))
        files.append(source.read_bytes())
    assert files[1] == files[2]
    assert format == "atif" or files[0] == files[1]


def test_atif_brings_back_branches_tokens_feedback_and_sub_agents(store, tmp_path):
    exact = {
        "choices": (Choice(0, REPLY, "stop", (7, 8), (-0.5, -0.25)), Choice(1, MORE | {"role": "assistant"}, "length")),
        "prompt_ids": (1, 2), "fidelity": Fidelity.EXACT, "logprob_provenance": LogprobProvenance.ENGINE,
        "sampler": Sampler(temperature=0.5), "usage": {"prompt_tokens": 2}, "tools": (TOOL,), "upstream_id": "u1",
    }  # fmt: skip
    first = put(store, [SYSTEM, USER], user="ann", **exact)
    asked = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    second = put(store, [SYSTEM, USER, REPLY, MORE], asked, at=1001.0, tools=(TOOL,))
    told = {"role": "tool", "tool_call_id": "c", "content": None, "name": "look"}
    put(store, [SYSTEM, USER, REPLY, MORE, asked, told], at=1002.0, tools=(TOOL,))
    put(store, [SYSTEM, USER, REPLY, {"role": "user", "content": "edited"}], at=1003.0)
    put(store, [USER], session="helper", at=1001.5, caller={"parent_session": "s1"}, branch=Branch.SUB_AGENT)
    say(store, first, FeedbackKind.THUMB, True)
    rated = NewFeedback(TargetKind.TOOL_CALL, second, FeedbackKind.NUMBER, 4, "rating", scale=(1.0, 5.0), tool_call=0)
    store.write(lambda conn: insert_feedback(conn, store.tenant, rated, True, 5000.0))
    say(store, "s1", FeedbackKind.OUTCOME, {"success": 0.5}, "outcome", TargetKind.SESSION)
    path = tmp_path / "out.jsonl"
    rows = written(store, path, "atif")
    assert [row["schema_version"] for row in rows] == ["ATIF-v1.8", "ATIF-v1.8"]
    steps = rows[0]["steps"]
    assert [step["step_id"] for step in steps] == [1, 2, 3, 4, 5, 6]
    assert steps[2]["metrics"]["logprobs"] == [-0.5, -0.25]
    assert steps[4]["tool_calls"][0]["arguments"] == {"t": "2025"}
    assert [step.get("is_copied_context") for step in rows[1]["steps"]] == [None, None, True, None, None]
    assert rows[0]["subagent_trajectories"][0]["session_id"] == "helper"
    assert take(path, Wish(None, None, "shop"), store, quiet).taken.total() == 0  # it is all here already
    with Store.open(tmp_path / "other.sqlite") as other:
        report = take(path, Wish(None, None, "shop"), other, quiet)
        assert report.taken == {"sessions": 2, "exchanges": 5, "feedback": 3}
        again = tmp_path / "again.jsonl"
        assert written(other, again, "atif") == rows
        assert again.read_bytes() == path.read_bytes()
        with store.read() as conn, other.read() as there:
            from nightschool.store.sessions import find_session

            mine = session_exchanges(conn, "default", str(find_session(conn, "default", "s1")))
            theirs = session_exchanges(there, "default", str(find_session(there, "default", "s1")))
        for old, new in zip(mine, theirs, strict=True):
            same = {"session_id": "", "split": Split.TRAIN, "principal": ""}
            assert replace(new, **same) == replace(old, **same)


def test_demonstrations_are_what_was_judged_well(store, tmp_path):
    user = trained_on(store)
    put(store, [USER], session="good", user=user, tools=(TOOL,))
    put(store, [USER, REPLY, MORE], {"role": "assistant", "content": "more"}, "good", 1001.0, user, tools=(TOOL,))
    bad = put(store, [USER], session="bad", at=1002.0, user=user)
    put(store, [USER], session="silent", at=1003.0, user=user)
    put(store, [USER], session="denied", at=1004.0, user=user, caller={"training_allowed": False})
    put(store, [USER], session="broken", at=1005.0, user=user, status="truncated")
    say(store, "good", FeedbackKind.OUTCOME, True, on=TargetKind.SESSION)
    say(store, "bad", FeedbackKind.OUTCOME, 0.0, on=TargetKind.SESSION)
    say(store, bad, FeedbackKind.CORRECTION, "better", "correction")
    rows = written(store, tmp_path / "out.jsonl", "sft")
    assert [(row["messages"], json.loads(row["tools"])) for row in rows] == [
        ([USER, REPLY, MORE, {"role": "assistant", "content": "more"}], [TOOL]),
        ([USER, {"role": "assistant", "content": "better"}], []),
    ]
    assert all(isinstance(row["tools"], str) for row in rows)  # one schema, whatever the tools
    assert (
        len(written(store, tmp_path / "out.jsonl", "sft", unjudged=True)) == 4
    )  # good, bad and its correction, silent
    with store.read() as conn:
        told = export(conn, "default", Order("sft", "shop", tmp_path / "o"), lambda done, of: None)
    assert told.left_out == {"judged badly": 1, "no feedback": 1, "training denied": 1, "status truncated": 1}


def test_held_out_rows_are_never_written_to_train_from(store, tmp_path):
    from nightschool.store.splits import split_key, split_of

    with store.read() as conn:
        key = split_key(conn, "default")
    held = next(name for name in map(str, range(1000)) if split_of(key, name) == Split.GATE)
    put(store, [USER], user=held)
    say(store, "s1", FeedbackKind.OUTCOME, True, on=TargetKind.SESSION)
    for format in ("sft", "preference", "kto"):
        assert written(store, tmp_path / "out.jsonl", format) == []
    assert len(written(store, tmp_path / "out.jsonl", "messages")) == 1


def test_preferences(store, tmp_path):
    user = trained_on(store)
    other = {"role": "assistant", "content": "other"}
    first = put(store, [USER], session="a", user=user, choices=(Choice(0, REPLY, "stop"), Choice(1, other, "stop")))
    value = {"chosen": {"choice": 1}, "rejected": {"choice": 0}}
    say(store, first, FeedbackKind.PREFERENCE, value, "preference")
    second = put(store, [MORE], session="b", at=1001.0, user=user)
    say(store, second, FeedbackKind.CORRECTION, {"content": None, "tool_calls": [CALL]}, "correction")
    up = put(store, [SYSTEM, USER], session="c", at=1002.0, user=user)
    down = put(store, [SYSTEM, USER], other, "c", 1003.0, user)
    say(store, up, FeedbackKind.THUMB, True)
    say(store, down, FeedbackKind.THUMB, False)
    rows = written(store, tmp_path / "out.jsonl", "preference")
    called = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    assert [(row["prompt"], row["chosen"], row["rejected"]) for row in rows] == [
        ([USER], [other], [REPLY]),
        ([MORE], [called], [REPLY]),
        ([SYSTEM, USER], [REPLY], [other]),
    ]
    assert rows[1]["chosen"][0]["tool_calls"][0]["function"]["arguments"] == '{"t":  "2025"}'


def test_judged_replies(store, tmp_path):
    user = trained_on(store)
    first = put(store, [USER], session="a", user=user)
    put(store, [USER, REPLY, MORE], session="a", at=1001.0, user=user)
    say(store, first, FeedbackKind.THUMB, False)
    say(store, "a", FeedbackKind.OUTCOME, True, on=TargetKind.SESSION)  # about both: it labels neither alone
    put(store, [MORE], session="b", at=1002.0, user=user)
    say(store, "b", FeedbackKind.OUTCOME, True, on=TargetKind.SESSION)
    rows = written(store, tmp_path / "out.jsonl", "kto")
    assert rows == [
        {"prompt": [USER], "completion": [REPLY], "label": False, "tools": "[]"},
        {"prompt": [MORE], "completion": [REPLY], "label": True, "tools": "[]"},
    ]


def test_a_secret_stops_the_file(store, tmp_path):
    put(store, [{"role": "user", "content": "my key is sk-proj-a1b2c3d4e5f6g7h8i9j0k1l2"}])
    path = tmp_path / "out.jsonl"
    path.write_text("what was there")
    with pytest.raises(RefusedError, match="1 api_key, first in lines 1"):
        written(store, path, "messages")
    assert path.read_text() == "what was there"
    assert [p.name for p in tmp_path.glob("*out*")] == ["out.jsonl"]
    assert len(written(store, path, "messages", secrets=True)) == 1


def test_what_cannot_be_written(store, tmp_path):
    with pytest.raises(MissingError, match="no sessions"):
        written(store, tmp_path / "out.jsonl", "messages")
    put(store, [USER])
    with pytest.raises(InputError, match="no format 'csv'"):
        written(store, tmp_path / "out.jsonl", "csv")
    assert list(tmp_path.glob("*.jsonl*")) == []
