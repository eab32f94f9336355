"""Conversations as clients lead them, in any order, against a model that knows what belongs together."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import sqlalchemy as sa
from databases import ON_BOTH
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from nightschool.store.database import Store
from nightschool.store.exchanges import insert_exchange
from nightschool.store.ids import new_id
from nightschool.store.records import Caller, Record, Timing
from nightschool.store.schema import exchanges, sessions
from nightschool.store.splits import make_split_key
from nightschool.types import Branch, Choice, Json

TITLE = {"role": "user", "content": "### Task:\nGenerate a concise title summarizing the chat history.\n" + "-" * 200}
HELPER = {"role": "system", "content": "You search the order book of the shop."}
WAYS = st.sampled_from(["as it came", "in parts", "without ids", "new system"])


@dataclass
class Conversation:
    """What the client knows of it; `seen` are its exchanges, by what the model says of them."""

    caller: Caller
    messages: list[Json]
    seen: dict[str, Branch] = field(default_factory=dict)
    parent: str | None = None
    session: str | None = None


class Placement(RuleBasedStateMachine):
    conversations = Bundle("conversations")
    store: Store
    tenants = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.tenant = f"tenant {next(self.tenants)}"
        self.clock = itertools.count(1000)
        self.number = itertools.count()
        self.all: list[Conversation] = []
        self.store.write(lambda conn: make_split_key(conn, self.tenant))

    @rule(target=conversations, named=st.booleans(), user=st.sampled_from([None, "ada", "bob"]), hint=st.booleans())
    def begin(self, named: bool, user: str | None, hint: bool) -> Conversation:
        """Another customer comes, with words of their own. Many share one cache key."""
        number = next(self.number)
        name = f"name {number}" if named else None
        caller = Caller("shop", session=name, body_user=user, session_hint="one cache key for all" if hint else None)
        conversation = Conversation(caller, [_system("It is noon."), _user(f"question {number}")])
        self.all.append(conversation)
        self.say(conversation)
        return conversation

    @rule(conversation=conversations, way=WAYS)
    def go_on(self, conversation: Conversation, way: str) -> None:
        """The next turn, after a client has written the history in its own way."""
        conversation.messages = [_rewritten(message, way) for message in conversation.messages]
        conversation.messages.append(_user(f"more {next(self.number)}"))
        self.say(conversation)

    @rule(conversation=conversations, attempts=st.integers(1, 3), marked=st.booleans())
    def fail_and_try_again(self, conversation: Conversation, attempts: int, marked: bool) -> None:
        conversation.messages.append(_user(f"again {next(self.number)}"))
        failed = [self.send(conversation, None, status=status) for status in ["error", "aborted", "error"][:attempts]]
        caller = conversation.caller
        conversation.caller = _with(caller, is_retry=marked)
        kept = self.say(conversation)
        conversation.caller = caller
        conversation.seen |= dict.fromkeys(failed, Branch.RETRY)
        assert self.row(kept).retry_of == failed[0]
        assert {self.row(one).parent_exchange_id for one in failed} == {self.row(kept).parent_exchange_id}

    @rule(conversation=conversations, size=st.integers(2, 4))
    def sample_a_group(self, conversation: Conversation, size: int) -> None:
        """Equal requests at one moment, with equal replies: samples, never retries. The last one is gone on with."""
        conversation.messages.append(_user(f"group {next(self.number)}"))
        at = float(next(self.clock))
        ids = [self.send(conversation, "same", at=at) for _ in range(size)]
        conversation.seen |= dict.fromkeys(ids, Branch.MAIN)
        assert {self.row(one).retry_of for one in ids} == {None}
        conversation.messages.append({"role": "assistant", "content": "same"})
        conversation.parent = None  # any of them

    @rule(conversation=conversations)
    def ask_for_a_title(self, conversation: Conversation) -> None:
        if conversation.caller.session:
            made = self.send(conversation, "A title", [TITLE])
            conversation.seen[made] = Branch.TITLE

    @rule(conversation=conversations, turns=st.integers(1, 3))
    def send_a_helper(self, conversation: Conversation, turns: int) -> None:
        if not conversation.caller.session:
            return
        messages = [HELPER, _user(f"find {next(self.number)}")]
        for _ in range(turns):
            reply = f"found {next(self.number)}"
            made = self.send(conversation, reply, messages)
            conversation.seen[made] = Branch.SUB_AGENT
            messages += [{"role": "assistant", "content": reply}, _user("more")]

    @invariant()
    def every_conversation_is_one_session(self) -> None:
        rows = self.rows()
        homes = [{rows[one].session_id for one in conversation.seen} for conversation in self.all]
        assert all(len(home) == 1 for home in homes)
        assert len(set().union(*homes)) == len(homes)
        for conversation in self.all:
            assert {one: rows[one].branch for one in conversation.seen} == conversation.seen

    @invariant()
    def a_session_counts_what_was_asked_not_how_often_it_was_tried(self) -> None:
        with self.store.read() as conn:
            found = conn.execute(sa.select(sessions).where(sessions.c.tenant == self.tenant)).all()
        assert sorted(row.num_exchanges for row in found) == sorted(
            sum(branch != Branch.RETRY for branch in conversation.seen.values()) for conversation in self.all
        )

    def say(self, conversation: Conversation) -> str:
        """One turn of the main branch, and its reply into the history."""
        reply = f"reply {next(self.number)}"
        made = self.send(conversation, reply)
        conversation.seen[made] = Branch.MAIN
        if conversation.parent is not None:
            assert self.row(made).parent_exchange_id == conversation.parent
        conversation.parent = made
        conversation.messages.append({"role": "assistant", "content": reply})
        return made

    def send(
        self,
        conversation: Conversation,
        reply: str | None,
        messages: list[Json] | None = None,
        status: str = "ok",
        at: float | None = None,
    ) -> str:
        asked = conversation.messages if messages is None else messages
        record = Record(
            id=new_id(),
            caller=conversation.caller,
            timing=Timing(at or float(next(self.clock)), duration_ms=500.0),
            policy_version="base",
            request_body=json.dumps({"messages": asked}).encode(),
            messages=tuple(asked),
            choices=() if reply is None else (Choice(0, {"role": "assistant", "content": reply}, "stop"),),
            status=status,
        )
        self.store.write(lambda conn: insert_exchange(conn, self.tenant, record))
        return record.id

    def rows(self) -> dict[str, sa.Row]:
        with self.store.read() as conn:
            return {row.id: row for row in conn.execute(sa.select(exchanges).where(exchanges.c.tenant == self.tenant))}

    def row(self, exchange_id: str) -> sa.Row:
        return self.rows()[exchange_id]


def _user(text: str) -> Json:
    return {"role": "user", "content": text}


def _system(text: str) -> Json:
    return {"role": "system", "content": f"You are the agent of a shop that sells tools for gardens. {text}"}


def _with(caller: Caller, **more: object) -> Caller:
    return Caller(**{name: getattr(caller, name) for name in Caller.__slots__} | more)


def _rewritten(message: Json, way: str) -> Json:
    if message["role"] == "system":
        return _system("It is one.") if way == "new system" else message
    if way == "in parts" and isinstance(message["content"], str):
        return {"content": [{"type": "text", "text": message["content"]}], "role": message["role"]}
    return {**message, "refusal": None} if way == "without ids" else message


@pytest.fixture(scope="module", params=ON_BOTH)
def store(request, new_place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder = tmp_path_factory.mktemp("placement")
    with new_place(request.param, folder) as place, Store.open(place) as opened:
        yield opened


def test_placement(store: Store) -> None:
    machine = type("Placement", (Placement,), {"store": store})
    run_state_machine_as_test(machine, settings=settings(max_examples=30, stateful_step_count=15, deadline=None))
