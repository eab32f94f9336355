import time

import pytest
import sqlalchemy as sa

from nightschool.errors import MissingError
from nightschool.store.exchanges import Caller, insert_exchange
from nightschool.store.explain import UNSEEN, explain
from nightschool.store.schema import adapters, aliases, feedback, ledger, releases, runs

USER = {"role": "user", "content": "hi"}


def put(store, table, **values) -> None:
    blank = {
        column.name: {"JSON": {}, "FLOAT": time.time(), "INTEGER": 0}.get(str(column.type), "")
        for column in table.c
        if not column.nullable
    }
    store.write(lambda conn: conn.execute(sa.insert(table), {**blank, "tenant": "default", **values}))


@pytest.fixture
def exchange(store, make_record) -> str:
    first = make_record([USER], caller=Caller("shop", session="s"), upstream_id="up")
    second = make_record([USER, {"role": "assistant", "content": "hello"}, USER], caller=Caller("shop", session="s"))
    store.write(lambda conn: insert_exchange(conn, "default", first))
    return store.write(lambda conn: insert_exchange(conn, "default", second))


def told(store, key: str) -> dict:
    with store.read() as conn:
        return explain(conn, "default", key)


def test_an_exchange_no_run_has_seen(store, exchange):
    story = told(store, exchange)
    assert story["summary"] == UNSEEN == "not yet looked at by any run"
    assert (story["ledger"], story["releases"], story["feedback"]) == ([], [], [])
    assert story["exchange"]["fidelity"] == "exact_tokens"
    assert story["session"]["num_exchanges"] == 2
    assert story["branch"] == [story["exchange"]["parent_exchange_id"], exchange]
    assert told(store, "up")["exchange"]["id"] == story["branch"][0]


def test_feedback_is_told_with_its_history(store, exchange):
    session = told(store, exchange)["session"]["id"]
    said = [("a", exchange, 1.0), ("b", exchange, 2.0), ("c", None, 3.0), ("d", "another exchange", 4.0)]
    for name, target, at in said:
        put(store, feedback, id=name, idempotency_key=name, exchange_id=target, session_id=session, received_at=at)
    # a changed mind is a second row; what was said of the whole session counts; of another exchange it does not
    assert [row["id"] for row in told(store, exchange)["feedback"]] == ["a", "b", "c"]


def test_the_ledger_and_the_releases(store, exchange):
    put(store, runs, id="r1", objective="sft", started_at=1.0, adapter_digest="d1", state="done")
    put(store, runs, id="r2", objective="oapl", started_at=2.0, adapter_digest="d2", state="done")
    put(store, runs, id="r3", objective="oapl", started_at=3.0, adapter_digest="d3", state="done")
    put(store, ledger, run_id="r1", exchange_id=exchange, state="trained", reason="thumb up", reward=1.0)
    put(store, ledger, run_id="r2", exchange_id=exchange, state="excluded", reason="too_stale")
    for digest, parent in (("d1", None), ("d2", "d1"), ("d3", None)):
        put(store, adapters, digest=digest, parent_digest=parent)
    for n, digest in enumerate(("d1", "d2", "d3")):
        put(store, releases, id=f"release {n}", agent="shop", number=n + 1, digest=digest, at=float(n))
    put(store, aliases, agent="shop", digest="d2", release_id="release 1")
    story = told(store, exchange)
    assert [(line["run_id"], line["state"], line["reason"], line["reward"]) for line in story["ledger"]] == [
        ("r1", "trained", "thumb up", 1.0),
        ("r2", "excluded", "too_stale", None),
    ]
    assert story["summary"] == "excluded by run r2: too_stale"
    # d2 was trained from d1, which learned from the exchange; d3 has nothing of it
    assert [(r["digest"], r["trained_here"], r["serving"]) for r in story["releases"]] == [
        ("d1", True, False),
        ("d2", False, True),
    ]


def test_an_unknown_exchange(store):
    with pytest.raises(MissingError, match="no exchange nobody"):
        told(store, "nobody")
