import itertools
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nightschool.errors import StoreError
from nightschool.store.blobs import put_blob
from nightschool.store.bodies import get_body
from nightschool.store.exchanges import insert_exchanges
from nightschool.store.matching import match_key, ordered_json
from nightschool.store.schema import blobs, exchanges, messages, spellings
from nightschool.store.tree import canonical, grow, load_branch, load_spelled, put_messages, put_nodes, rolling_match
from nightschool.types import Choice, Json

contents = st.none() | st.text(max_size=20) | st.lists(st.fixed_dictionaries({"text": st.text(max_size=5)}), max_size=2)
chat_messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "tool"])}, optional={"content": contents}),
    min_size=1,
    max_size=5,
)


def count(store, table) -> int:
    with store.read() as conn:
        return len(conn.execute(table.select()).all())


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(branch=chat_messages)
def test_a_branch_comes_back(store, branch):
    leaf = store.write(lambda conn: put_messages(conn, "default", branch))
    with store.read() as conn:
        assert load_branch(conn, "default", leaf) == tuple(branch)


def test_null_absent_and_empty_are_three_messages():
    spelled = [{"role": "user", "content": None}, {"role": "user"}, {"role": "user", "content": ""}]
    assert len({grow("default", [message])[0].hash for message in spelled}) == 3
    # a client may exchange one for the other when it resends: to matching they are one
    assert len({rolling_match(None, match_key(message)) for message in spelled}) == 1


def test_the_hash_covers_tenant_parent_and_content_but_not_the_order_of_keys():
    hello, other = {"role": "user", "content": "hi"}, {"content": "hi", "role": "user"}
    assert grow("a", [hello])[0].hash == grow("a", [other])[0].hash
    assert grow("a", [hello])[0].hash != grow("b", [hello])[0].hash
    first, second = grow("a", [hello, hello])
    assert first.hash != second.hash
    assert grow("a", [{"role": "user", "content": 1}])[0].hash != grow("a", [{"role": "user", "content": 1.0}])[0].hash


def test_a_shared_prefix_is_stored_once(store):
    root = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    left, right = [*root, {"role": "assistant", "content": "l"}], [*root, {"role": "assistant", "content": "r"}]
    store.write(lambda conn: put_messages(conn, "default", left))
    store.write(lambda conn: put_messages(conn, "default", right))
    store.write(lambda conn: put_messages(conn, "default", left))
    assert count(store, messages) == 4  # s, u, l, r


def test_a_branch_grows_from_a_stored_parent(store):
    a, b = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    whole = store.write(lambda conn: put_messages(conn, "default", [a, b]))
    top = store.write(lambda conn: put_messages(conn, "default", [a]))
    assert store.write(lambda conn: put_messages(conn, "default", [b], parent_hash=top)) == whole
    with pytest.raises(StoreError, match="not in the store"):
        store.write(lambda conn: put_messages(conn, "default", [b], parent_hash="0" * 64))
    with pytest.raises(ValueError, match="at least one"):
        store.write(lambda conn: put_messages(conn, "default", []))
    with store.read() as conn, pytest.raises(StoreError):
        load_branch(conn, "other tenant", whole)


def test_the_spelling_of_the_body_is_kept_when_it_reads_as_the_message(store):
    message = {"role": "user", "content": "é"}
    spelling = b'{"role":  "user", "content": "\xc3\xa9"}'
    nodes = grow("default", [message], None, [spelling])
    memo = store.write(lambda conn: put_nodes(conn, "default", nodes))
    assert memo.young.variants == {(nodes[0].hash, spelling): 0}
    other = grow("default", [{"role": "user", "content": "e"}], None, [spelling])
    memo = store.write(lambda conn: put_nodes(conn, "default", other))
    kept = b'{"role":"user","content":"e"}'
    assert memo.young.variants == {(other[0].hash, kept): 0, (other[0].hash, spelling): 1}
    with store.read() as conn:
        assert load_branch(conn, "default", other[0].hash) == ({"role": "user", "content": "e"},)
        assert load_spelled(conn, "default", other[0].hash, b"\1") == [spelling]
        with pytest.raises(StoreError, match="not in the store"):
            load_spelled(conn, "default", other[0].hash, b"\2")


def test_a_reply_is_kept_as_clients_send_it_back(store, make_record):
    """Keys in their order, no spaces: then the next request's body finds it, and nothing is stored for it."""
    first: list[Json] = [{"role": "user", "content": "hi"}]
    reply = {"role": "assistant", "content": "caf\u00e9", "refusal": None}
    choices = (Choice(0, reply, "stop", None, None),)
    more = [*first, reply, {"role": "user", "content": "and?"}]
    body = json.dumps({"messages": more}, ensure_ascii=False, separators=(",", ":")).encode()
    records = [make_record(first, choices=choices), make_record(more, request_body=body)]
    for record in records:
        store.write(lambda conn, one=record: insert_exchanges(conn, "default", [one]))
    assert count(store, spellings) == 1  # of "hi", which the first body spells with spaces, the second without
    assert count(store, messages) == 4
    with store.read() as conn:
        row = conn.execute(exchanges.select().where(exchanges.c.id == records[1].id)).one()
        assert get_body(conn, "default", row.request_body) == body
        assert load_branch(conn, "default", row.prompt_message) == tuple(more)


@pytest.mark.parametrize(
    "value", [1, 1.0, True, None, float("inf"), 2**70, "\ud800", 1e22, -0.0, {"b": 1, "a": [None]}]
)
def test_what_is_kept_reads_as_the_message(value):
    message = {"role": "user", "content": value}
    kept = grow("default", [message])[0].kept
    assert canonical(json.loads(kept)) == canonical(message)
    # never taken for another: the same bytes are the same message
    others = [canonical(json.loads(ordered_json({"role": "user", "content": one}))) for one in (1, 1.0, True, None)]
    assert len(set(others)) == 4


def test_the_spelling_of_a_body_is_the_blob_when_it_reads_as_the_message(store):
    message = {"role": "user", "content": "é" * 1000}
    spelling = json.dumps(message, ensure_ascii=False).encode()
    nodes = grow("default", [message], None, [spelling])
    store.write(lambda conn: put_blob(conn, "default", spelling))
    store.write(lambda conn: put_nodes(conn, "default", nodes))
    assert count(store, blobs) == 1
    with store.read() as conn:
        assert load_branch(conn, "default", nodes[0].hash) == (message,)


def test_a_conversation_lies_together_and_its_system_messages_apart():
    def chat(*roles: str) -> list[str]:
        return [node.hash[:8] for node in grow("default", [{"role": role, "content": "x"} for role in roles])]

    shared, own, *rest = chat("system", "user", "assistant", "user")
    assert shared == "0" * 8
    assert own != shared
    assert rest == [own, own]
    assert chat("user", "system", "assistant")[0] == chat("user", "system", "assistant")[2]
    nodes = grow("default", [{"role": "system", "content": "x"}, {"role": "user", "content": "x"}])
    assert grow("default", [{"role": "tool"}], nodes[-1])[0].match_hash[:8] == nodes[-1].match_hash[:8]


@given(st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_canonical_reads_back(value):
    assert json.loads(canonical(value)) == value


def test_a_lone_surrogate_is_content_too(store):
    message = {"role": "user", "content": "\ud800"}
    leaf = store.write(lambda conn: put_messages(conn, "default", [message]))
    with store.read() as conn:
        assert load_branch(conn, "default", leaf) == (message,)


def test_several_replies_to_one_leaf_and_a_branch_known_only_above(store):
    history = [{"role": "user", "content": str(n)} for n in range(30)]
    nodes = grow("default", history)
    replies = [grow("default", [{"role": "assistant", "content": str(n)}], nodes[-1])[0] for n in range(12)]
    store.write(lambda conn: put_nodes(conn, "default", nodes[:5]))
    store.write(lambda conn: put_nodes(conn, "default", [*nodes, *replies[:6]]))
    store.write(lambda conn: put_nodes(conn, "default", [*nodes, *replies]))
    store.write(lambda conn: put_nodes(conn, "default", [*nodes, *replies]))
    assert count(store, messages) == 30 + 12
    with store.read() as conn:
        assert load_branch(conn, "default", replies[11].hash) == (*history, {"role": "assistant", "content": "11"})


tenants = itertools.count()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(branches=st.lists(chat_messages, min_size=1, max_size=6))
def test_a_tree_has_a_node_for_every_distinct_beginning(store, branches):
    """Against the set of beginnings, by exact content; every branch comes back, in any order of arrival."""
    tenant = f"tenant {next(tenants)}"
    beginnings = {canonical(branch[:size]) for branch in branches for size in range(1, len(branch) + 1)}
    leaves = store.write(lambda conn: [put_messages(conn, tenant, branch) for branch in branches])
    with store.read() as conn:
        assert len(conn.execute(messages.select().where(messages.c.tenant == tenant)).all()) == len(beginnings)
        assert [load_branch(conn, tenant, leaf) for leaf in leaves] == [tuple(branch) for branch in branches]
    assert len(set(leaves)) == len({canonical(branch) for branch in branches})
