import json
import random

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from nightschool.store.bodies import get_body
from nightschool.store.exchanges import (
    Caller,
    find_exchange,
    insert_exchange,
    load_exchange,
    session_exchanges,
)
from nightschool.store.ids import new_id
from nightschool.store.schema import blobs, bodies, exchanges, messages, spellings
from nightschool.types import Choice, Exchange, Fidelity, LogprobProvenance, Purpose, Sampler, Split

USER = {"role": "user", "content": "hi"}
REPLY = {"role": "assistant", "content": "hello"}
MORE = {"role": "user", "content": "and?"}


def insert(store, record) -> str:
    return store.write(lambda conn: insert_exchange(conn, store.tenant, record))


def load(store, exchange_id) -> Exchange:
    with store.read() as conn:
        found = load_exchange(conn, store.tenant, exchange_id)
    assert found is not None
    return found


def test_what_went_in_comes_out(store, make_record):
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {}}}
    call = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": '{"order": 7}'}}
    record = make_record(
        [{"role": "system", "content": None}, USER],
        tools=(tool,),
        choices=(
            Choice(0, {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls", (7, 8), (-0.5, None)),
            Choice(1, REPLY, "stop", (9,), (-1.0,)),
        ),
        prompt_ids=(1, 2, 3),
        logprob_provenance=LogprobProvenance.ENGINE,
        sampler=Sampler(temperature=0.7, seed=3),
        reply_body=b'data: {"x": 1}\n\n',
        upstream_id="chatcmpl-1",
    )
    got = load(store, insert(store, record))
    assert got.messages == record.messages
    assert got.tools == record.tools
    assert got.choices == record.choices
    assert got.prompt_ids == (1, 2, 3)
    assert got.sampler == record.sampler
    assert (got.fidelity, got.logprob_provenance) == (Fidelity.EXACT, LogprobProvenance.ENGINE)
    assert (got.agent, got.status, got.policy_version, got.upstream_id) == ("shop", "ok", "base", "chatcmpl-1")
    with store.read() as conn:
        row = conn.execute(sa.select(exchanges)).one()
        assert get_body(conn, "default", row.request_body) == record.request_body
        assert get_body(conn, "default", row.reply_body) == record.reply_body
    assert (row.num_prompt_tokens, row.num_sampled_tokens) == (3, 3)


def test_missing_is_not_zero(store, make_record):
    got = load(store, insert(store, make_record([USER], None, status="error", request_body=b"{", error="no engine")))
    assert got.prompt_ids is None
    assert got.choices == ()
    empty = load(store, insert(store, make_record([], None, request_body=b"\xff", prompt_ids=())))
    assert empty.prompt_ids == ()
    assert empty.messages == ()
    with store.read() as conn:
        assert conn.scalars(sa.select(exchanges.c.num_sampled_tokens)).all() == [None, None]
    with store.read() as conn:
        assert load_exchange(conn, "default", new_id()) is None


def test_prompt_ids_are_a_delta_to_the_parent_and_come_back(store, make_record):
    prompt, history, ids, loaded = (1, 2, 3), [USER], [], []
    for turn in range(4):
        completion = (100 + turn, 200)
        record = make_record(history, f"reply {turn}", prompt_ids=prompt, completion_ids=completion)
        ids.append(insert(store, record))
        loaded.append(prompt)
        history = [*history, {"role": "assistant", "content": f"reply {turn}"}, MORE]
        prompt = (*prompt, *completion, 50, 51)
    for exchange_id, expected in zip(ids, loaded, strict=True):
        assert load(store, exchange_id).prompt_ids == expected
    with store.read() as conn:
        rows = conn.execute(sa.select(exchanges).order_by(exchanges.c.id)).all()
        session = session_exchanges(conn, "default", rows[0].session_id)
    assert [row.parent_exchange_id for row in rows] == [None, *ids[:3]]
    # 3 ids at first, then 2 new ones a turn after a prefix of 3 + 2, 7 + 2, 11 + 2 ids; 4 bytes each
    assert [(row.prompt_prefix_len, len(row.prompt_ids)) for row in rows] == [(0, 12), (5, 8), (9, 8), (13, 8)]
    assert [row.num_prompt_tokens for row in rows] == [3, 7, 11, 15]
    assert [(e.id, e.prompt_ids) for e in session] == list(zip(ids, loaded, strict=True))


def test_a_prompt_that_does_not_continue_its_parent_is_a_fork_stored_whole(store, make_record):
    first = insert(store, make_record([USER], "hello", prompt_ids=(1, 2), completion_ids=(3,)))
    fork = insert(store, make_record([USER, REPLY, MORE], "x", prompt_ids=(1, 2, 4, 9), completion_ids=(5,)))
    child = insert(
        store,
        make_record(
            [USER, REPLY, MORE, {"role": "assistant", "content": "x"}, MORE], "y", prompt_ids=(1, 2, 4, 9, 5, 6)
        ),
    )
    with store.read() as conn:
        rows = conn.execute(sa.select(exchanges).order_by(exchanges.c.id)).all()
    assert [(r.parent_exchange_id, r.prompt_prefix_len) for r in rows] == [(None, 0), (first, 0), (fork, 5)]
    assert load(store, fork).prompt_ids == (1, 2, 4, 9)
    assert load(store, child).prompt_ids == (1, 2, 4, 9, 5, 6)


def test_ids_after_a_reply_without_ids_are_stored_whole(store, make_record):
    insert(store, make_record([USER], "hello"))
    child = insert(store, make_record([USER, REPLY, MORE], "x", prompt_ids=(1, 2)))
    assert load(store, child).prompt_ids == (1, 2)


def test_found_by_its_own_id_the_upstreams_id_or_an_external_key(store, make_record):
    caller = Caller(agent="shop", external_key="ticket 9")
    older = insert(store, make_record([USER], caller=caller, upstream_id="up 1"))
    newer = insert(store, make_record([MORE], caller=caller, upstream_id="up 2"))
    with store.read() as conn:
        assert find_exchange(conn, "default", older) == older
        assert find_exchange(conn, "default", "up 1") == older
        assert find_exchange(conn, "default", "ticket 9") == newer
        assert find_exchange(conn, "default", "nobody") is None
        assert find_exchange(conn, "other", older) is None


def test_a_clock_that_steps_back_keeps_prompts_whole(store, make_record):
    insert(store, make_record([USER], "hello", prompt_ids=(1,), completion_ids=(2,), started_at=50.0))
    insert(store, make_record([USER, REPLY, MORE], "x", prompt_ids=(1, 2, 3), started_at=40.0))
    with store.read() as conn:
        session_id = conn.scalars(sa.select(exchanges.c.session_id).distinct()).one()
        assert [e.prompt_ids for e in session_exchanges(conn, "default", session_id)] == [(1, 2, 3), (1,)]


@pytest.mark.parametrize(
    "message", [{}, {"role": 3, "content": 4, "tool_calls": 5}, {"role": "\ud800", "content": [1]}]
)
def test_strange_messages_are_stored(store, make_record, message):
    got = load(store, insert(store, make_record([message], caller=Caller("shop", body_user="\ud800"))))
    assert got.messages == (message,)
    assert got.principal == "?"


def test_one_id_is_one_exchange(store, make_record):
    record = make_record([USER])
    insert(store, record)
    with pytest.raises(IntegrityError):
        insert(store, record)


def test_resent_history_of_whole_exchanges_costs_less_than_twice_its_text(store, make_record):
    words = random.Random(3)
    history, unique = [{"role": "system", "content": "Answer for the shop. " * 40}], 840
    for _ in range(40):
        history.append({"role": "user", "content": words.randbytes(120).hex()})  # no two alike, half compressible
        insert(store, make_record(history, reply := words.randbytes(120).hex()))
        history.append({"role": "assistant", "content": reply})
        unique += len(json.dumps(history[-2:]))
    kept = (messages.c.content, spellings.c.data, blobs.c.data, bodies.c.segments)
    with store.read() as conn:
        num_bytes = sum(conn.scalar(sa.select(sa.func.sum(sa.func.length(column)))) or 0 for column in kept)
        num_messages = conn.scalar(sa.select(sa.func.count()).select_from(messages))
    # a reply is kept as the engine spelled it and as the client did; a body is 40 bytes and one for each reply
    assert num_bytes < 1.7 * unique
    assert num_messages == 81  # the system message, 40 questions, 40 answers


def test_exams_are_gate_rows_whatever_the_hash_says(store, make_record):
    for n in range(20):
        caller = Caller(agent="shop", header_user=f"user {n}", purpose=Purpose.EXAM, exam_id="e")
        got = load(store, insert(store, make_record([USER], caller=caller)))
        assert (got.split, got.purpose, got.exam_id) == (Split.GATE, Purpose.EXAM, "e")
