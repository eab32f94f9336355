import time

import pytest
import sqlalchemy as sa

from nightschool.store.exchanges import Caller, find_session, insert_exchange, load_exchange
from nightschool.store.ids import new_id
from nightschool.store.schema import feedback, sessions
from nightschool.store.splits import split_key, split_of
from nightschool.types import Purpose, TargetKind

USER = {"role": "user", "content": "hi"}
REPLY = {"role": "assistant", "content": "hello"}
MORE = {"role": "user", "content": "and?"}


@pytest.fixture
def insert(store, make_record):
    def insert(messages, reply="hello", caller=None, **fields):
        record = make_record(messages, reply, caller, **fields)
        store.write(lambda conn: insert_exchange(conn, "default", record))
        with store.read() as conn:
            return load_exchange(conn, "default", record.id)

    return insert


def test_a_resent_reply_joins_its_session_even_after_a_clients_rewriting(insert):
    first = insert([USER])
    resent = {"content": [{"type": "text", "text": "hello"}], "role": "assistant", "refusal": None}
    second = insert([USER, resent, MORE])
    assert second.session_id == first.session_id
    assert second.parent_exchange_id == first.id


def test_another_history_is_another_session(insert):
    first = insert([USER])
    assert insert([USER, {"role": "assistant", "content": "good day"}, MORE]).session_id != first.session_id
    assert insert([USER]).session_id != first.session_id
    assert insert([USER, REPLY, MORE], caller=Caller(agent="other")).session_id != first.session_id


def test_the_longest_prefix_wins_and_a_rewritten_reply_falls_back_to_a_shorter_one(insert):
    first = insert([USER])
    second = insert([USER, REPLY, MORE], "sure")
    third = insert([USER, REPLY, MORE, {"role": "assistant", "content": "sure"}, MORE])
    assert third.parent_exchange_id == second.id
    edited = insert([USER, REPLY, MORE, {"role": "assistant", "content": "EDITED"}, MORE])
    assert edited.parent_exchange_id == first.id
    assert edited.session_id == first.session_id


def test_identical_conversations_stay_apart(insert):
    one, two = insert([USER]), insert([USER])
    left, right = insert([USER, REPLY, MORE]), insert([USER, REPLY, MORE])
    assert {left.session_id, right.session_id} == {one.session_id, two.session_id}
    third = insert([USER, REPLY, MORE])  # a retry of one of them: the newest that can be meant
    assert third.session_id == two.session_id


def test_named_sessions_never_mix_however_alike(insert):
    a, b = Caller(agent="shop", session="a"), Caller(agent="shop", session="b")
    a1, b1 = insert([USER], caller=a), insert([USER], caller=b)
    a2, b2 = insert([USER, REPLY, MORE], caller=a), insert([USER, REPLY, MORE], caller=b)
    assert a1.session_id == a2.session_id != b1.session_id == b2.session_id
    assert (a2.parent_exchange_id, b2.parent_exchange_id) == (a1.id, b1.id)
    c1 = insert([USER, REPLY, MORE], caller=Caller(agent="shop", session="c"))
    assert c1.session_id not in (a1.session_id, b1.session_id)
    assert c1.parent_exchange_id is None
    side = insert([{"role": "user", "content": "a title for this"}], caller=a)
    assert (side.session_id, side.parent_exchange_id) == (a1.session_id, None)


def test_users_with_the_same_words_stay_apart(insert):
    ada, bob = Caller(agent="shop", body_user="ada"), Caller(agent="shop", body_user="bob")
    first = insert([USER], caller=ada)
    assert insert([USER, REPLY, MORE], caller=bob).session_id != first.session_id
    assert insert([USER, REPLY, MORE], caller=ada).session_id == first.session_id


def test_principal_is_header_then_body_then_session_and_stays(store, insert):
    both = insert([USER], caller=Caller(agent="shop", session="s", header_user="h", body_user="b"))
    assert both.principal == "h"
    assert insert([MORE], caller=Caller(agent="shop", body_user="b")).principal == "b"
    alone = insert([MORE], "alone")
    assert alone.principal == alone.session_id
    later = insert([MORE], caller=Caller(agent="shop", session="s", header_user="someone else"))
    assert (later.principal, later.split) == ("h", both.split)
    with store.read() as conn:
        assert both.split == split_of(split_key(conn, "default"), "h")


def test_an_exam_keeps_its_versions_apart_and_out_of_service(insert):
    def exam(version: str, **names) -> str:
        caller = Caller(agent="shop", session="customer 1", purpose=Purpose.EXAM, **names)
        return insert([USER], caller=caller, policy_version=version).session_id

    served = insert([USER], caller=Caller(agent="shop", session="customer 1")).session_id
    examined = [exam("cand", exam_id="e1"), exam("inc", exam_id="e1"), exam("cand", exam_id="e2")]
    assert len({served, *examined}) == 4
    assert exam("cand", exam_id="e1") == examined[0]


def test_a_session_row_counts_and_shows_its_first_question(store, insert):
    caller = Caller(agent="shop", session="s")
    insert([{"role": "system", "content": "x"}, {"role": "user", "content": "y" * 300}], caller=caller, started_at=20.0)
    insert([MORE], caller=caller, started_at=10.0, policy_version="v2")
    last = insert([MORE], caller=caller, started_at=30.0)
    with store.read() as conn:
        row = conn.execute(sa.select(sessions)).one()
        assert find_session(conn, "default", "s") == find_session(conn, "default", row.id) == last.session_id
        assert find_session(conn, "default", "nobody") is None
    assert (row.num_exchanges, row.first_at, row.last_at) == (3, 10.0, 30.0)
    assert (row.preview, row.external_key, row.policy_version) == ("y" * 200, "s", "base")


def test_a_sessions_own_id_works_as_its_name(insert):
    first = insert([USER])
    assert insert([MORE], caller=Caller(agent="shop", session=first.session_id)).session_id == first.session_id


@pytest.mark.parametrize(
    ("kind", "target", "whole_session", "other_kind"),
    [
        (TargetKind.EXCHANGE, "mine", False, "matched"),  # a session is also known by its exchanges' ids
        (TargetKind.EXCHANGE, "chatcmpl-7", False, "matched"),
        (TargetKind.EXCHANGE, "ticket", False, "parked"),
        (TargetKind.EXTERNAL_KEY, "ticket", False, "parked"),
        (TargetKind.SESSION, "s", True, "parked"),
    ],
)
def test_parked_feedback_finds_its_target(store, insert, kind, target, whole_session, other_kind):
    park(store, kind, target)
    park(store, kind, "somebody else")
    park(store, TargetKind.SESSION if kind != TargetKind.SESSION else TargetKind.EXCHANGE, target)
    got = insert([USER], caller=Caller("shop", session="s", external_key="ticket"), id="mine", upstream_id="chatcmpl-7")
    with store.read() as conn:
        rows = conn.execute(sa.select(feedback).order_by(feedback.c.id)).all()
    assert [row.state for row in rows] == ["matched", "parked", other_kind]
    assert rows[0].session_id == got.session_id
    assert rows[0].exchange_id == (None if whole_session else "mine")


def park(store, kind: TargetKind, target: str) -> None:
    feedback_id = new_id()
    row = {
        "tenant": "default",
        "id": feedback_id,
        "idempotency_key": feedback_id,
        "target_kind": kind.value,
        "target_id": target,
        "state": "parked",
        "name": "feedback",
        "kind": "thumb",
        "value": True,
        "source": "end_user",
        "observed_at": time.time(),
        "received_at": time.time(),
    }
    store.write(lambda conn: conn.execute(sa.insert(feedback), row))
