"""What is too old goes, with all that only it referred to; the rest is as it was."""

from __future__ import annotations

import json
import random
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from databases import ON_BOTH
from hypothesis import given, settings
from hypothesis import strategies as st

from nightschool.access.audit import read_chain
from nightschool.access.retention import BATCH, Wish, find_expired, rehearse, retain
from nightschool.feedback.body import read_feedback
from nightschool.feedback.record import insert_feedback
from nightschool.store.bodies import get_body
from nightschool.store.database import Store
from nightschool.store.exchanges import insert_exchange, load_exchange
from nightschool.store.expiry import Search, remove, sweep
from nightschool.store.records import Caller, Record, Timing
from nightschool.store.schema import blobs, bodies, choices, exchanges, feedback, messages, orphans, sessions
from nightschool.types import Choice, Exchange, Fidelity

DAY = 86_400.0
SYSTEM = {"role": "system", "content": "You sell shoes. " * 100}  # longer than what a message keeps in its own row


def talk(name: str, days: list[float], session: str | None = None) -> list[Record]:
    """A conversation whose turns happen on these days; each resends the history, as JSON of the client's spelling."""
    history: list[dict] = [SYSTEM]
    records = []
    prompt: tuple[int, ...] = (1, 2, 3)
    for turn, day in enumerate(days):
        history.append({"role": "user", "content": f"{name} asks {turn}: " + "why? " * 30})
        reply = {"role": "assistant", "content": f"{name} is told {turn}"}
        body = json.dumps({"model": "shop", "messages": history, "tools": [{"name": f"tool of {name}"}]}).encode()
        completion = (50 + turn, 51)
        records.append(
            Record(
                f"{name}-{turn}",
                Caller("shop", session=session),
                Timing(day * DAY),
                "base",
                body,
                b'{"id": 1}',
                messages=tuple(history),
                tools=({"name": f"tool of {name}"},),
                prompt_ids=prompt,
                choices=(Choice(0, reply, "stop", completion, (-0.1, -0.2)),),
                fidelity=Fidelity.EXACT,
            )
        )
        history.append(reply)
        prompt = (*prompt, *completion, 60 + turn)
    return records


def put(store: Store, records: list[Record]) -> None:
    for record in sorted(records, key=lambda record: record.timing.started_at):
        store.write(lambda conn, r=record: insert_exchange(conn, store.tenant, r))


def judge(store: Store, when: float, **body) -> None:
    item = read_feedback({"kind": "thumb", "value": True, **body}, when)
    store.write(lambda conn: insert_feedback(conn, store.tenant, item, False, when))


def everything(store: Store) -> dict[str, tuple[Exchange | None, bytes]]:
    """Every exchange as it is loaded, with its request's bytes."""
    x = exchanges.c
    with store.read() as conn:
        rows = conn.execute(sa.select(x.id, x.request_body).where(x.tenant == store.tenant)).all()
        return {
            row.id: (load_exchange(conn, store.tenant, row.id), get_body(conn, store.tenant, row.request_body))
            for row in rows
        }


def count(store: Store, table: sa.Table) -> int:
    with store.read() as conn:
        return conn.scalar(sa.select(sa.func.count()).select_from(table).where(table.c.tenant == store.tenant)) or 0


def test_nothing_of_an_old_conversation_is_left(store, tmp_path):
    put(store, [*talk("ann", [1, 2]), *talk("bob", [30, 31])])
    judge(store, 1 * DAY, exchange="ann-0")
    judge(store, 30 * DAY, exchange="bob-0")
    judge(store, 1 * DAY, exchange="never-came")
    before = everything(store)
    assert rehearse(store, Wish(10 * DAY)).exchanges == 2
    done = retain(store, Wish(10 * DAY), "me")
    # ann's two exchanges in one session, one judgement; two request bodies and two replies, of which the bytes are
    # equal but the times differ; her two questions, two replies; the tools. The system message is bob's too.
    assert (done.exchanges, done.sessions, done.feedback, done.parked, done.spared) == (2, 1, 1, 1, 0)
    assert (done.bodies, done.messages, done.blobs) == (4, 4, 1)
    assert everything(store) == {name: before[name] for name in ("bob-0", "bob-1")}
    assert [count(store, table) for table in (choices, feedback, sessions, orphans)] == [2, 1, 1, 0]
    store.close()
    for path in Path(tmp_path).glob("store.sqlite*"):
        assert b"ann asks" not in path.read_bytes()
        assert b"tool of ann" not in path.read_bytes()


def test_what_stays_keeps_its_prompt_and_its_history(store):
    """The third turn is young: its own prompt ids were a delta to turns that go."""
    put(store, talk("ann", [1, 2, 30], session="s"))
    before = everything(store)
    done = retain(store, Wish(10 * DAY), "me")
    assert (done.exchanges, done.sessions, done.messages) == (2, 0, 0)  # the last request holds the whole history
    ((exchange, raw),) = everything(store).values()
    whole, raw_before = before["ann-2"]
    assert raw == raw_before
    assert exchange
    assert whole
    assert (exchange.prompt_ids, exchange.messages) == (whole.prompt_ids, whole.messages)
    assert exchange.parent_exchange_id is None
    with store.read() as conn:
        row = conn.execute(sa.select(sessions)).one()
    assert (row.num_exchanges, row.first_at) == (1, 30 * DAY)


def test_what_serving_adapters_learned_from_is_spared_and_counted(store):
    put(store, talk("ann", [1, 2]))
    done = retain(store, Wish(10 * DAY, frozenset({"ann-1"})), "me")
    assert (done.exchanges, done.spared) == (1, 1)
    assert set(everything(store)) == {"ann-1"}
    assert retain(store, Wish(10 * DAY), "me").exchanges == 1
    assert count(store, messages) == count(store, blobs) == count(store, bodies) == 0


def test_a_picture_stays_as_long_as_a_message_that_shows_it(store):
    """The young one names its history by id (`previous_response_id`): its own body does not hold the picture."""
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "iVBORw0K" * 5000}}]}
    reply = {"role": "assistant", "content": "a cat"}
    old_body = json.dumps({"model": "shop", "messages": [picture]}).encode()
    history = (picture, reply, {"role": "user", "content": "sure?"})
    choice = Choice(0, reply, "stop")
    old = Record("old", Caller("shop"), Timing(DAY), "base", old_body, messages=(picture,), choices=(choice,))
    put(store, [old, Record("young", Caller("shop"), Timing(30 * DAY), "base", b'{"a": 1}', messages=history)])
    before = everything(store)
    retain(store, Wish(10 * DAY), "me")
    assert everything(store)["young"][0].messages == before["young"][0].messages == history
    retain(store, Wish(40 * DAY), "me")
    assert count(store, messages) == count(store, blobs) == count(store, bodies) == 0


def test_a_rehearsal_changes_nothing(store):
    put(store, talk("ann", [1]))
    before = everything(store)
    rehearse(store, Wish(10 * DAY))
    assert everything(store) == before
    with store.read() as conn:
        assert read_chain(conn, store.tenant) == []


def test_the_log_says_how_much_went(store):
    put(store, talk("ann", [1]))
    retain(store, Wish(10 * DAY), "ann (command line)")
    retain(store, Wish(10 * DAY), "again")  # nothing to do, nothing to tell
    with store.read() as conn:
        (row,) = read_chain(conn, store.tenant)
    assert (row.by, row.action, row.detail["exchanges"], row.detail["messages"]) == (
        "ann (command line)",
        "retention",
        1,
        3,
    )


def test_another_tenant_is_not_touched(store):
    other = store.scoped("other")
    put(store, talk("ann", [1]))
    put(other, talk("ann", [1]))
    before = everything(other)
    retain(store, Wish(10 * DAY), "me")
    assert everything(store) == {}
    assert everything(other) == before


@pytest.mark.parametrize("at", range(1, 6))
def test_stopped_anywhere_it_goes_on(store, monkeypatch, at):
    """The store is whole after each transaction; a second run ends where one run would have."""
    put(store, [record for n in range(BATCH // 20 + 1) for record in talk(f"t{n}", [1] * 12)] + talk("bob", [30]))
    before = everything(store)
    real, number = store.write, 0

    def write(work):
        nonlocal number
        number += 1
        if number > at:
            raise KeyboardInterrupt
        return real(work)

    monkeypatch.setattr(store, "write", write)
    with pytest.raises(KeyboardInterrupt):
        retain(store, Wish(10 * DAY), "me")
    monkeypatch.setattr(store, "write", real)
    assert everything(store).items() <= before.items() or at < 3  # what is still there is as it was, or freed
    for exchange, _ in everything(store).values():
        assert exchange is not None
        assert exchange.prompt_ids == before[exchange.id][0].prompt_ids
    retain(store, Wish(10 * DAY), "me")
    assert everything(store) == {"bob-0": before["bob-0"]}
    assert (count(store, messages), count(store, bodies), count(store, orphans)) == (3, 2, 0)


def test_what_comes_back_meanwhile_stays_whole(store, monkeypatch):
    """While the sweep looks, an old conversation is taken up again: its messages are in use, though none was."""
    put(store, talk("ann", [1, 2]))
    late = talk("ann", [1, 2, 40])[2]
    real, came = store.write, False

    def write(work):
        nonlocal came
        if count(store, exchanges) == 0 and not came:  # just before the sweep's first deletion
            came = True
            real(lambda conn: insert_exchange(conn, store.tenant, late))
        return real(work)

    monkeypatch.setattr(store, "write", write)
    retain(store, Wish(10 * DAY), "me")
    ((exchange, raw),) = everything(store).values()
    assert exchange is not None
    assert (exchange.messages, raw) == (late.messages, late.request_body)


def test_what_two_deletions_at_once_have_in_common_with_newer_exchanges_stays(store, monkeypatch):
    """While one sweeps, two exchanges use its orphans again, and another deletion removes one of these two: its
    messages are written down anew, and are not the first one's to delete. The last to remove something sweeps."""
    put(store, talk("ann", [1, 2]))
    asked = talk("ann", [1, 2])[1]
    fields = list(Record.__slots__)[1:]
    again = [Record(f"again-{n}", *(getattr(asked, name) for name in fields)) for n in range(2)]
    again[1] = replace(again[1], timing=Timing(30 * DAY))
    real, came = store.write, False

    def write(work):
        nonlocal came
        if count(store, exchanges) == 0 and count(store, orphans) and not came:
            came = True
            result = real(work)  # the sweep is announced, and has not begun to delete
            monkeypatch.setattr(store, "write", real)
            search = Search.look

            def look(found, conn):
                search(found, conn)
                monkeypatch.setattr(Search, "look", search)
                put(store, again)
                real(lambda conn: remove(conn, store.tenant, ["again-0"]))

            monkeypatch.setattr(Search, "look", look)
            return result
        return real(work)

    monkeypatch.setattr(store, "write", write)
    retain(store, Wish(10 * DAY), "me")
    assert set(everything(store)) == {"again-1"}
    exchange, raw = everything(store)["again-1"]
    assert exchange is not None
    assert (exchange.messages, raw) == (asked.messages, asked.request_body)
    retain(store, Wish(10 * DAY), "the other one")
    assert everything(store)["again-1"] == (exchange, raw)
    assert count(store, orphans) == 0


def test_beside_a_gateway_that_records(store):
    """Old conversations go while the same ones, and others, are recorded again; all that is new can be read."""
    put(store, [record for n in range(20) for record in talk(f"t{n}", [1, 2])])
    stop = threading.Event()
    stored: list[Record] = []

    def record() -> None:
        choose = random.Random(3)
        while not stop.is_set():
            name = f"t{choose.randrange(40)}"
            new = talk(name, [1, 2, 30 + len(stored) * 1e-3])[2]
            new = Record(f"{name}-{len(stored)}-new", *(getattr(new, f) for f in list(Record.__slots__)[1:]))
            store.write(lambda conn, new=new: insert_exchange(conn, store.tenant, new))
            stored.append(new)

    thread = threading.Thread(target=record)
    thread.start()
    try:
        for _ in range(3):
            retain(store, Wish(10 * DAY), "me")
        time.sleep(0.1)
    finally:
        stop.set()
        thread.join()
    found = everything(store)
    assert stored
    assert set(found) == {record.id for record in stored}
    for record in stored:
        exchange, raw = found[record.id]
        assert exchange is not None
        assert (exchange.messages, raw, exchange.prompt_ids) == (
            record.messages,
            record.request_body,
            record.prompt_ids,
        )


@pytest.mark.parametrize("kind", ON_BOTH)
@settings(max_examples=6)
@given(st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=4), min_size=1, max_size=4), st.integers(0, 21))
def test_any_cutoff_leaves_the_rest_as_it_was(new_place, tmp_path_factory, kind, conversations, day):
    with new_place(kind, tmp_path_factory.mktemp("any")) as place, Store.open(place) as store:
        for number, days in enumerate(conversations):
            put(store, talk(f"t{number}", sorted(map(float, days))))
        before = everything(store)
        retain(store, Wish(day * DAY), "me")
        after = everything(store)
        assert set(after) == {name for name, (e, _) in before.items() if e and e.started_at >= day * DAY}
        for name, (exchange, raw) in after.items():
            whole, raw_before = before[name]
            assert exchange
            assert whole
            assert (exchange.messages, exchange.prompt_ids, exchange.choices) == (
                whole.messages,
                whole.prompt_ids,
                whole.choices,
            )
            assert raw == raw_before
        if not after:
            assert count(store, messages) == count(store, blobs) == count(store, bodies) == 0
        assert list(find_expired(store, Wish(day * DAY))) == []
        assert sweep(store).messages == 0
