"""Whatever arrives first, feedback ends up at the same place."""

import json
import os
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from databases import ON_BOTH
from hypothesis import given, settings
from hypothesis import strategies as st

from nightschool.errors import InputError
from nightschool.feedback.record import current_view, feedback_value, insert_feedback
from nightschool.feedback.values import NewFeedback
from nightschool.store.database import Store
from nightschool.store.exchanges import Caller, Record, Timing, insert_exchange
from nightschool.store.schema import feedback, sessions
from nightschool.store.splits import make_split_key
from nightschool.store.targets import LAST
from nightschool.types import Branch, Choice, FeedbackKind, TargetKind

EXCHANGE, TURN, TOOL_CALL = TargetKind.EXCHANGE, TargetKind.TURN, TargetKind.TOOL_CALL
SESSION, EXTERNAL = TargetKind.SESSION, TargetKind.EXTERNAL_KEY


@pytest.fixture(scope="module", params=ON_BOTH)
def store(request, new_place, tmp_path_factory) -> Iterator[Store]:
    folder = tmp_path_factory.mktemp("feedback")
    with new_place(request.param, folder) as place, Store.open(place) as opened:
        yield opened


@pytest.fixture
def tenant(store) -> str:
    return new_tenant(store)


def new_tenant(store: Store) -> str:
    name = str(uuid.uuid4())
    store.write(lambda conn: make_split_key(conn, name))
    return name


def record(name: str, at: float, session: str = "s1", calls: tuple[str, ...] = (), **more) -> Record:
    made = [{"id": call, "type": "function", "function": {"name": "f", "arguments": "{}"}} for call in calls]
    message = {"role": "assistant", "content": name, **({"tool_calls": made} if made else {})}
    body = {"messages": [{"role": "user", "content": f"say {name}"}]}
    caller = Caller("shop", session=session, external_key=more.get("key"))
    return Record(
        name,
        caller,
        Timing(at),
        "base",
        json.dumps(body).encode(),
        messages=tuple(body["messages"]),
        choices=(Choice(0, message, "stop"),),
        upstream_id=f"up-{name}",
        branch=more.get("branch", Branch.MAIN),
    )


def thumb(kind: TargetKind, name: str, value: bool = True, at: float | None = None, **more) -> NewFeedback:
    return NewFeedback(kind, name, FeedbackKind.THUMB, value, "thumb", observed_at=at, **more)


def arrive(store: Store, tenant: str, *things: Record | NewFeedback, lenient: bool = False) -> list:
    """Store them in one write, in this order; what is refused raises, unless it is `lenient`."""

    def write(conn):
        done = []
        for thing in things:
            if isinstance(thing, Record):
                done.append(insert_exchange(conn, tenant, thing))
                continue
            try:
                done.append(insert_feedback(conn, tenant, thing, admin=False, now=time.time()))
            except InputError:
                if not lenient:
                    raise
        return done

    return store.write(write)


def rows(store: Store, tenant: str) -> list:
    with store.read() as conn:
        return conn.execute(feedback.select().where(feedback.c.tenant == tenant).order_by(feedback.c.id)).all()


def view(store: Store, tenant: str) -> set[tuple]:
    """The current view, with sessions by name: their ids differ from run to run."""
    with store.read() as conn:
        known = conn.execute(sessions.select().where(sessions.c.tenant == tenant)).all()
    names = {row.id: row.external_key for row in known}
    return {
        (i.exchange_id, names.get(i.session_id), i.tool_call, i.name, i.author, i.value, i.target_id)
        for i in current_view(map(feedback_value, rows(store, tenant)))
    }


def test_a_shared_key_means_the_newest_that_had_begun(store, tenant):
    # Ticket t was worked on at 10 and at 20. Judged at 15 it is about the first, at 25 the second, at 5 the first.
    two = (record("a", 10, key="t"), record("b", 20, session="s2", key="t"))
    arrive(store, tenant, *two, *(thumb(EXTERNAL, "t", at=at) for at in (15, 25, 5)))
    assert [row.exchange_id for row in rows(store, tenant)] == ["a", "b", "a"]


def test_a_later_arrival_that_is_meant_takes_its_feedback_over(store, tenant):
    arrive(store, tenant, record("a", 10, key="t"), thumb(EXTERNAL, "t", at=25))
    assert [row.exchange_id for row in rows(store, tenant)] == ["a"]
    arrive(store, tenant, record("b", 20, session="s2", key="t"))
    assert [row.exchange_id for row in rows(store, tenant)] == ["b"]


def test_turns_are_counted_on_the_main_branch(store, tenant):
    told = [thumb(TURN, "s1", turn=turn, at=50) for turn in (2, LAST, 4)]
    arrive(store, tenant, *told, record("a", 10), record("title", 11, branch=Branch.TITLE), record("c", 30))
    assert [(row.state, row.exchange_id) for row in rows(store, tenant)] == [
        ("matched", "c"),
        ("matched", "c"),
        ("parked", None),
    ]
    # An exchange that began between them was stored late: now it is the second turn.
    arrive(store, tenant, record("b", 20))
    assert [(row.state, row.exchange_id) for row in rows(store, tenant)] == [
        ("matched", "b"),
        ("matched", "c"),
        ("parked", None),
    ]


def test_a_session_named_once_is_known_to_its_later_exchanges(store, tenant):
    first, history = record("a", 10), [{"role": "user", "content": "say a"}, {"role": "assistant", "content": "a"}]
    arrive(store, tenant, thumb(TURN, "s1", turn=2, at=50), first)
    messages = (*history, {"role": "user", "content": "more"})
    body = json.dumps({"messages": messages}).encode()
    second = Record("b", Caller("shop"), Timing(20.0), "base", body, messages=messages)
    arrive(store, tenant, second)
    assert [row.exchange_id for row in rows(store, tenant)] == ["b"]


def test_tool_calls_pair_by_position_and_never_across_replies(store, tenant):
    # The same id in two turns, as real agents send it; in the third reply twice.
    calls = (record("a", 10, calls=("c1", "c2")), record("b", 20, calls=("c1",)), record("c", 30, calls=("c1", "c1")))
    arrive(store, tenant, *calls)
    arrive(store, tenant, thumb(TOOL_CALL, "a", tool_call="c2"), thumb(TOOL_CALL, "up-b", tool_call="c1"))
    arrive(store, tenant, thumb(TOOL_CALL, "c", tool_call=1), thumb(TOOL_CALL, "s1", turn=2, tool_call=0))
    assert [(row.exchange_id, row.tool_call) for row in rows(store, tenant)] == [("a", 1), ("b", 0), ("c", 1), ("b", 0)]
    with pytest.raises(InputError, match="2 tool calls of the reply have the id 'c1'"):
        arrive(store, tenant, thumb(TOOL_CALL, "c", tool_call="c1"))
    with pytest.raises(InputError, match="has 1 tool calls, and none is 1"):
        arrive(store, tenant, thumb(TOOL_CALL, "b", tool_call=1))


@pytest.mark.skipif("NIGHTSCHOOL_DATA" not in os.environ, reason="needs the folder that NIGHTSCHOOL_DATA names")
def test_reused_ids_of_real_agents_pair_by_turn_and_position(store, tenant):
    """A recorded run in which one id names calls of different functions: each is judged as what it was."""
    runs = json.loads((Path(os.environ["NIGHTSCHOOL_DATA"]) / "tau_bench" / "gpt-4o-airline.json").read_text())
    run = next(run for run in runs if has_reused_id(run["traj"]))
    replies = [message for message in run["traj"] if message["role"] == "assistant"]
    functions: list[str] = []
    for number, message in enumerate(replies):
        body = {"messages": [{"role": "user", "content": f"turn {number}"}]}
        made = (Choice(0, message, "stop"),)
        caller = Caller("airline", session="run")
        turn = Record(f"r{number}", caller, Timing(10.0 + number), "base", json.dumps(body).encode(), choices=made)
        arrive(store, tenant, replace(turn, messages=tuple(body["messages"]), branch=Branch.MAIN))
        for place, call in enumerate(message.get("tool_calls") or ()):
            functions.append(call["function"]["name"])
            said = NewFeedback(TOOL_CALL, "run", FeedbackKind.CATEGORY, functions[-1], "is", turn=number + 1)
            arrive(store, tenant, replace(said, tool_call=(place, call["id"])[number % 2]))
    found = rows(store, tenant)
    assert len(found) == len(functions)
    for row in found:
        reply = replies[int(row.exchange_id.removeprefix("r"))]
        assert reply["tool_calls"][row.tool_call]["function"]["name"] == row.value


def has_reused_id(messages: list[dict]) -> bool:
    names: dict[str, str] = {}
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    return any(names.setdefault(call["id"], call["function"]["name"]) != call["function"]["name"] for call in calls)


def test_one_key_on_two_days_counts_once_and_a_new_score_replaces_the_old(store, tenant):
    arrive(store, tenant, record("a", 10))
    days = [thumb(EXCHANGE, "a", author="ann", key="click-1"), thumb(EXCHANGE, "a", author="ann", key="click-1")]
    for day, said in enumerate(days):
        now = 1_772_366_400.0 + 86_400 * day
        receipt = store.write(lambda conn, said=said, now=now: insert_feedback(conn, tenant, said, False, now))
        assert receipt.repeated == bool(day)
    arrive(store, tenant, thumb(EXCHANGE, "a", False, author="ann", key="click-2"))
    assert [row.value for row in rows(store, tenant)] == [True, False]
    assert [item[5] for item in view(store, tenant)] == [False]


def test_calls_of_one_reply_are_judged_apart(store, tenant):
    arrive(store, tenant, record("a", 10, calls=("c1", "c2")))
    said = (thumb(TOOL_CALL, "a", True, tool_call=0), thumb(TOOL_CALL, "a", False, tool_call="c2"))
    arrive(store, tenant, *said, thumb(EXCHANGE, "a", False))
    arrive(store, tenant, *said)  # again: nothing new
    assert [(row.tool_call, row.value) for row in rows(store, tenant)] == [(0, True), (1, False), (None, False)]
    assert len(view(store, tenant)) == 3


def test_early_judgement_of_a_call_that_never_was_stays_parked(store, tenant):
    arrive(store, tenant, thumb(TOOL_CALL, "a", tool_call=2), thumb(TOOL_CALL, "a", tool_call="c1"))
    arrive(store, tenant, record("a", 10, calls=("c1",)))
    assert [(row.state, row.exchange_id) for row in rows(store, tenant)] == [("parked", None), ("matched", "a")]


def test_parked_feedback_expires_and_stays_visible(store, tenant):
    short = thumb(EXCHANGE, "a"), thumb(EXCHANGE, "a", author="ann")
    store.write(lambda conn: insert_feedback(conn, tenant, short[0], False, now=1000.0, parked_s=10.0))
    store.write(lambda conn: insert_feedback(conn, tenant, short[1], False, now=1000.0, parked_s=1e12))
    arrive(store, tenant, record("a", 990))
    assert [(row.state, row.expires_at) for row in rows(store, tenant)] == [
        ("parked", 1010.0),
        ("matched", 1e12 + 1000),
    ]


def test_superseding_by_id(store, tenant):
    arrive(store, tenant, record("a", 10), record("b", 20))
    [first] = arrive(store, tenant, thumb(EXCHANGE, "a", True, at=100, author="ann"))
    [second] = arrive(store, tenant, thumb(EXCHANGE, "a", False, at=110, author="ann"))
    # An operator corrects what ann said last. What she had said before does not come back.
    arrive(store, tenant, thumb(EXCHANGE, "up-a", True, at=120, source="operator", supersedes=second.id))
    assert [item[3:6] for item in view(store, tenant)] == [("thumb", None, True)]
    assert len(rows(store, tenant)) == 3, "nothing was removed"
    with pytest.raises(InputError, match="no feedback has that id"):
        arrive(store, tenant, thumb(EXCHANGE, "a", supersedes="nope"))
    with pytest.raises(InputError, match="about another target"):
        arrive(store, tenant, thumb(EXCHANGE, "b", supersedes=first.id))


def test_two_deliveries_at_once_are_one_row(place):
    """Two processes' worth of stores on one database, each with a writer of its own."""
    said = thumb(EXCHANGE, "a", author="ann"), thumb(EXCHANGE, "a", False, author="bob", key="k")
    with Store.open(place) as one, Store.open(place) as two:
        with ThreadPoolExecutor(16) as pool:
            receipts = list(
                pool.map(lambda n: arrive((one, two)[n % 2], "default", said[n // 2 % 2])[0], range(64), timeout=60)
            )
        assert len(rows(one, "default")) == 2
    assert sum(not receipt.repeated for receipt in receipts) == 2
    assert len({receipt.id for receipt in receipts}) == 2


RECORDS = st.builds(
    record,
    st.just(""),
    st.just(0.0),
    session=st.sampled_from(["s1", "s2"]),
    calls=st.sampled_from([(), ("c1",), ("c1", "c2"), ("c1", "c1")]),
    key=st.sampled_from([None, "t1", "t2"]),
    branch=st.sampled_from([Branch.MAIN, Branch.TITLE]),
)
TARGETS = st.one_of(
    st.tuples(st.just(EXCHANGE), st.sampled_from(["e0", "up-e1", "t1", "never"])),
    st.tuples(st.just(EXTERNAL), st.sampled_from(["t1", "t2"])),
    st.tuples(st.just(SESSION), st.sampled_from(["s1", "s2", "up-e2"])),
    st.tuples(st.just(TURN), st.sampled_from(["s1", "s2"]), st.sampled_from([1, 2, LAST])),
    st.tuples(
        st.just(TOOL_CALL), st.sampled_from(["e0", "up-e1"]), st.none(), st.sampled_from([0, 1, "c1", "c2", "c9"])
    ),
)
SAID = st.tuples(TARGETS, st.booleans(), st.sampled_from([None, "ann"]))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_order_of_arrival_gives_the_same_view(store, data):
    """Exchanges begin at 10, 20, ...; judgements are observed in between, at distinct times; some come twice."""
    made = data.draw(st.lists(RECORDS, min_size=1, max_size=4))
    exchanges = [
        record(
            f"e{n}",
            10.0 * (n + 1),
            session=one.caller.session or "s1",
            calls=tuple(call["id"] for call in one.choices[0].message.get("tool_calls", ())),
            key=one.caller.external_key,
            branch=one.branch,
        )
        for n, one in enumerate(made)
    ]
    said = []
    for n, ((kind, name, *part), value, author) in enumerate(data.draw(st.lists(SAID, min_size=1, max_size=6))):
        turn, call = (*part, None, None)[:2]
        said.append(thumb(kind, name, value, 1 + 7.0 * n, author=author, turn=turn, tool_call=call))
    everything = exchanges + said + data.draw(st.lists(st.sampled_from(said), max_size=2))
    found = []
    for order in (everything, data.draw(st.permutations(everything))):
        tenant = new_tenant(store)
        # A call that never was is refused at once when its exchange is there, and parked for good when it is not.
        arrive(store, tenant, *order, lenient=True)
        found.append({item for item in view(store, tenant) if item[0] or item[1]})
    assert found[0] == found[1], everything
