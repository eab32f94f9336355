"""Exchanges stored together are placed as if they had come one by one."""

import itertools
import json
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nightschool.store.exchanges import insert_exchanges
from nightschool.store.foresight import ROWS_EACH
from nightschool.store.records import Caller, Record, Timing
from nightschool.store.schema import exchanges, messages, meta, sessions
from nightschool.types import Branch, Choice, Json, Purpose

tenants = itertools.count()

TITLE = "### Task:\nGenerate a concise title summarizing the chat history.\n" + "-" * 200
SUMMARIZE = "Summarize this conversation so that another agent can continue it. " + "-" * 200
SUMMARY = "The customer wants the red scarf; what was said so far is replaced by this."
MOVES = (
    *["begin"] * 4,
    *["go on"] * 8,
    *["fork", "go on twice", "fail", "retry", "say again", "by id", "title", "helper", "compact", "group"],
)
moves = st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 99), st.integers(0, 99)), min_size=2, max_size=30)


@dataclass
class Talk:
    """A conversation as its client has it."""

    caller: Caller
    said: list[Json]
    last_id: str | None = None
    number: itertools.count = field(default_factory=itertools.count)


class Clients:
    """Makes the records of some conversations. Words and replies are few, so that many look alike."""

    def __init__(self) -> None:
        self.talks: list[Talk] = []
        self.records: list[Record] = []
        self.at = 1000.0

    def move(self, kind: str, which: int, how: int) -> None:
        if kind == "begin" or not self.talks:
            self.talks.append(Talk(a_caller(which, how), a_beginning(how)))
            return self.go_on(self.talks[-1], how)
        talk = self.talks[which % len(self.talks)]
        if kind == "go on":
            self.go_on(talk, how)
        elif kind == "fork":
            kept = max(2, len(talk.said) - 2 * (1 + how % 3))
            self.talks.append(Talk(talk.caller, talk.said[:kept] if kept % 2 else talk.said[:2]))
            self.go_on(self.talks[-1], how)
        elif kind == "go on twice":
            twin = replace(talk, said=list(talk.said))
            self.go_on(talk, how)
            self.go_on(twin, how + 1)
            self.talks.append(twin)
        elif kind == "fail":
            self.send(talk, self.asked(talk, how), None, status=("error", "aborted")[how % 2])
        elif kind == "retry":
            asked = self.asked(talk, how)
            for status in ("error", "aborted")[: 1 + how % 2]:
                self.send(talk, asked, None, status=status)
            self.answer(talk, asked, how, caller=replace(talk.caller, is_retry=how % 3 == 0))
        elif kind == "say again":
            asked = self.asked(talk, how)
            self.send(talk, asked, "ok")
            self.answer(talk, asked, how, caller=replace(talk.caller, is_retry=True))
        elif kind == "by id" and talk.last_id:
            self.send(talk, [user("and?")], "ok", caller=replace(talk.caller, previous_response=talk.last_id))
        elif kind == "title":
            self.send(talk, [user(TITLE)], "A title")
        elif kind == "helper":
            caller = replace(
                talk.caller,
                session=f"helper {how % 2}" if how % 3 else None,
                parent_session=talk.caller.session or "nobody",
            )
            self.send(talk, [system("You search."), user(f"find {how % 2}")], "found", caller=caller)
        elif kind == "compact":
            self.send(talk, [*talk.said, user(SUMMARIZE)], SUMMARY)
            talk.said = [system("A shop."), user(f"We go on: {SUMMARY}")]
            self.go_on(talk, how)
        elif kind == "group":
            at = self.at
            for _ in range(2 + how % 2):
                self.at = at
                self.send(talk, [*talk.said, user("sample")], "same")
        return None

    def asked(self, talk: Talk, how: int) -> list[Json]:
        said = talk.said
        if how % 7 == 1:
            said = [system("It is one.") if m["role"] == "system" else m for m in said]
        if how % 7 == 2:
            said = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in said]
        return [*said, user(f"more {how % 2}")] if said[-1]["role"] == "assistant" else said

    def go_on(self, talk: Talk, how: int) -> None:
        self.answer(talk, self.asked(talk, how), how)

    def answer(self, talk: Talk, asked: list[Json], how: int, caller: Caller | None = None) -> None:
        reply = ("ok", "fine", f"reply {len(self.records)}")[how % 3]
        self.send(talk, asked, reply, caller=caller)
        talk.said = [*asked, {"role": "assistant", "content": reply}]
        if how % 11 == 3:
            talk.said = [*talk.said, user("x"), {"role": "assistant", "content": "never recorded"}]

    def send(
        self, talk: Talk, asked: list[Json], reply: str | None, caller: Caller | None = None, status: str = "ok"
    ) -> None:
        number = len(self.records)
        self.at += (1.0, 0.0, 5.0, -2.0)[number % 4]
        message = {"role": "assistant", "content": reply}
        ids = None if reply is None else tuple(range(number % 5))
        record = Record(
            id=f"01900000-0000-7000-8000-{number:012d}",
            caller=caller or talk.caller,
            timing=Timing(self.at, 500.0),
            policy_version="base",
            request_body=json.dumps({"messages": asked}).encode(),
            messages=tuple(asked),
            choices=() if reply is None else (Choice(0, message, "stop", ids, None),),
            prompt_ids=tuple(range(number % 5)) if number % 2 else None,
            status=status,
            upstream_id=f"up-{number}",
        )
        self.records.append(record)
        talk.last_id = record.upstream_id


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def system(text: str) -> Json:
    return {"role": "system", "content": text}


def a_caller(which: int, how: int) -> Caller:
    exam = which % 10 == 9
    return Caller(
        agent=("shop", "helpdesk")[which % 5 == 0],
        session=f"name {how % 3}" if which % 3 == 0 else None,
        body_user=(None, "ada", "bob")[how % 3],
        session_hint="one cache key for all" if how % 4 == 0 else None,
        purpose=Purpose.EXAM if exam else Purpose.SERVE,
        exam_id="exam" if exam else None,
        tags=("red",) if how % 5 == 0 else (),
        branch=Branch.SUB_AGENT if which % 13 == 7 else None,
    )


def a_beginning(how: int) -> list[Json]:
    return [system(("A shop.", "A shop. It is noon.")[how % 2]), user(("hi", "hello", f"question {how}")[how % 3])]


def facts(store, tenant: str, records: list[Record]) -> tuple[list[Any], list[Any], int]:
    """Everything that placement decided. A session is named by its first exchange in this list."""
    own: tuple[Any, ...] = (exchanges.c.tenant == tenant,)
    with store.read() as conn:
        rows = {row.id: row for row in conn.execute(sa.select(exchanges).where(*own))}
        homes = conn.execute(sa.select(sessions).where(sessions.c.tenant == tenant)).all()
        size = conn.scalar(sa.select(sa.func.count()).select_from(messages).where(messages.c.tenant == tenant))
    names: dict[str, str] = {}
    for record in records:
        names.setdefault(rows[record.id].session_id, record.id)
    hashed = {"tenant", "session_id", "principal", "split", "prompt_message"}  # random, or of the tenant
    placed = [
        {key: value for key, value in rows[record.id]._mapping.items() if key not in hashed}
        | {
            "session": names[rows[record.id].session_id],
            "principal": names.get(rows[record.id].principal, rows[record.id].principal),
            "split": None if rows[record.id].principal in names else rows[record.id].split,
        }
        for record in records
    ]
    told = [
        {key: value for key, value in home._mapping.items() if key not in {"tenant", "id", "principal", "split"}}
        | {
            "id": names[home.id],
            "principal": names.get(home.principal, home.principal),
            "parent_session_id": names.get(home.parent_session_id or "", home.parent_session_id),
        }
        for home in homes
    ]
    return placed, sorted(told, key=lambda home: home["id"]), size or 0


def new_tenant(store) -> str:
    """All of them share one split key."""
    tenant = f"batch tenant {next(tenants)}"
    row = {"tenant": tenant, "key": "split_key", "value": "00" * 32}
    store.write(lambda conn: conn.execute(sa.insert(meta), row))
    return tenant


def stored(store, records: list[Record], sizes: list[int]) -> tuple[list[Any], list[Any], int]:
    tenant, at = new_tenant(store), 0
    for size in itertools.cycle(sizes):
        part = records[at : at + size]
        store.write(lambda conn, part=part: insert_exchanges(conn, tenant, part))
        at += size
        if at >= len(records):
            break
    return facts(store, tenant, records)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=moves, sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4))
def test_a_batch_is_placed_as_if_its_exchanges_had_come_one_by_one(store, moves, sizes):
    clients = Clients()
    for kind, which, how in moves:
        clients.move(kind, which, how)
    alone = stored(store, clients.records, [1])
    assert stored(store, clients.records, sizes) == alone
    assert stored(store, clients.records, [len(clients.records)]) == alone


def test_what_many_have_in_common_is_asked_one_by_one(store):
    """Twelve conversations alike are more than one query for a batch reads of them."""
    clients = Clients()
    for _ in range(3 * ROWS_EACH):
        clients.move("begin", 1, 1)  # hello, fine
    for number in range(3 * ROWS_EACH):
        clients.move("go on", number, 1)
    alone = stored(store, clients.records, [1])
    assert stored(store, clients.records, [3 * ROWS_EACH]) == alone
    assert len({home["id"] for home in alone[1]}) == 3 * ROWS_EACH
