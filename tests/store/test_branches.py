"""Where exchanges go that are not simply the next turn: retries, side tasks, sub-agents, other systems, hints."""

import pytest
import sqlalchemy as sa

from nightschool.store.exchanges import Caller, insert_exchange, load_exchange
from nightschool.store.schema import exchanges, sessions
from nightschool.types import Branch, Choice, Json


def system(text: str) -> Json:
    return {"role": "system", "content": text}


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def assistant(text: str) -> Json:
    return {"role": "assistant", "content": text}


SHOP = system("You are the agent of a shop.")
ASK = [SHOP, user("where is my parcel?")]
SUMMARIZE = user("Create a detailed summary of the conversation so far, with all that is needed to go on. " * 3)
SUMMARY = "Summary:\nThe customer looks for parcel 7, which is late."
TITLE = [user("### Task:\nGenerate a concise title with an emoji summarizing the chat history.\n" + "-" * 200)]
NAMED = Caller(agent="shop", session="s")


@pytest.fixture
def insert(store, make_record):
    def insert(messages, reply="hello", caller=None, **fields):
        record = make_record(messages, reply, caller, duration_ms=500.0, **fields)
        store.write(lambda conn: insert_exchange(conn, "default", record))
        return record.id

    return insert


@pytest.fixture
def row(store):
    def row(exchange_id: str) -> sa.Row:
        with store.read() as conn:
            return conn.execute(sa.select(exchanges).where(exchanges.c.id == exchange_id)).one()

    return row


@pytest.fixture
def session_row(store):
    def session_row(session_id: str) -> sa.Row:
        with store.read() as conn:
            return conn.execute(sa.select(sessions).where(sessions.c.id == session_id)).one()

    return session_row


def branch(row: sa.Row) -> str:
    return row.branch


class TestRetries:
    def test_an_attempt_without_a_reply_counts_no_more_once_it_is_repeated(self, insert, row, session_row):
        first = insert(ASK, None, status="error", started_at=100.0)
        again = insert(ASK, started_at=101.0)
        assert (row(first).branch, row(again).branch) == ("retry", "main")
        assert (row(first).retry_of, row(again).retry_of) == (None, first)
        assert row(first).session_id == row(again).session_id
        assert session_row(row(again).session_id).num_exchanges == 1

    def test_three_attempts_are_one(self, insert, row, session_row):
        ids = [insert(ASK, None, status=status, started_at=at) for status, at in (("error", 1.0), ("aborted", 2.0))]
        ids.append(insert(ASK, started_at=3.0))
        assert [row(i).branch for i in ids] == ["retry", "retry", "main"]
        assert [row(i).retry_of for i in ids] == [None, ids[0], ids[0]]
        assert session_row(row(ids[2]).session_id).num_exchanges == 1

    def test_a_retry_keeps_the_place_in_the_conversation(self, insert, row):
        top = insert(ASK)
        more = [*ASK, assistant("hello"), user("and?")]
        failed = insert(more, None, status="error", started_at=2000.0)
        again = insert(more, started_at=2001.0)
        assert row(again).parent_exchange_id == row(failed).parent_exchange_id == top
        assert row(again).session_id == row(top).session_id

    def test_samples_that_are_alike_stay_samples(self, insert, row):
        ids = [insert(ASK, "same", NAMED, started_at=100.0) for _ in range(4)]
        assert {row(i).branch for i in ids} == {"main"}
        assert {row(i).retry_of for i in ids} == {None}

    def test_one_of_a_group_fails_and_the_others_are_not_its_retries(self, insert, row):
        # all began at 100.0; the failed one ended at 100.5
        failed = insert(ASK, None, NAMED, status="error", started_at=100.0)
        others = [insert(ASK, "same", NAMED, started_at=100.0) for _ in range(3)]
        assert {row(i).branch for i in [failed, *others]} == {"main"}

    def test_what_is_asked_again_much_later_is_asked_anew(self, insert, row):
        failed = insert(ASK, None, NAMED, status="error", started_at=100.0)
        later = insert(ASK, "x", NAMED, started_at=100.0 + 0.5 + 601)
        assert (row(failed).branch, row(later).retry_of) == ("main", None)

    def test_an_sdk_that_says_so_missed_the_one_reply(self, insert, row):
        again = Caller(agent="shop", session="s", is_retry=True)
        lost = insert(ASK, "hello", NAMED, started_at=100.0)
        retried = insert(ASK, "hello", again, started_at=105.0)
        assert (row(lost).branch, row(retried).branch, row(retried).retry_of) == ("retry", "main", lost)

    def test_but_not_one_of_several_samples(self, insert, row):
        again = Caller(agent="shop", session="s", is_retry=True)
        samples = [insert(ASK, "hello", NAMED, started_at=100.0) for _ in range(2)]
        later = insert(ASK, "hello", again, started_at=105.0)
        assert {row(i).branch for i in [*samples, later]} == {"main"}

    def test_a_retry_that_fails_does_not_displace_a_reply(self, insert, row):
        again = Caller(agent="shop", session="s", is_retry=True)
        lost = insert(ASK, "hello", NAMED, started_at=100.0)
        failed = insert(ASK, None, again, status="error", started_at=105.0)
        assert (row(lost).branch, row(failed).branch) == ("main", "retry")

    def test_users_and_sessions_do_not_retry_for_each_other(self, insert, row):
        insert(ASK, None, Caller("shop", body_user="ada"), status="error", started_at=100.0)
        insert(ASK, None, NAMED, status="error", started_at=100.0)
        bob = insert(ASK, "x", Caller("shop", body_user="bob"), started_at=101.0)
        other = insert(ASK, "x", Caller("shop", session="t"), started_at=101.0)
        assert [row(i).retry_of for i in (bob, other)] == [None, None]


class TestSideBranches:
    def test_a_sub_agent_has_another_opening_and_keeps_its_branch(self, insert, row):
        top = insert(ASK, caller=NAMED)
        helper = [system("You search the order book."), user("parcel 7")]
        sub = insert(helper, "found", NAMED)
        sub2 = insert([*helper, assistant("found"), user("more")], "none", NAMED)
        main = insert([*ASK, assistant("hello"), user("and?")], "sure", NAMED)
        assert [row(i).branch for i in (top, sub, sub2, main)] == ["main", "sub_agent", "sub_agent", "main"]
        assert [row(i).parent_exchange_id for i in (sub, sub2, main)] == [None, sub, top]
        assert len({row(i).session_id for i in (top, sub, sub2, main)}) == 1

    def test_the_main_branch_may_begin_anew(self, insert, row):
        top = insert(ASK, caller=NAMED)
        again = insert([SHOP, user("another thing")], "yes", NAMED)
        assert [branch(row(i)) for i in (top, again)] == ["main", "main"]

    def test_another_model_may_write_the_title_and_the_session_is_the_main_agents(self, insert, row, session_row):
        small = Caller(agent="small", session="s")
        title = insert(TITLE, "Parcel", small, policy_version="tiny")
        top = insert(ASK, caller=NAMED)
        assert [branch(row(i)) for i in (title, top)] == ["title", "main"]
        kept = session_row(row(top).session_id)
        assert row(title).session_id == kept.id
        assert (kept.agent, kept.policy_version, kept.preview) == ("shop", "base", "where is my parcel?")
        assert kept.num_exchanges == 2

    def test_a_probe_before_the_first_turn_is_not_the_conversation(self, insert, row, session_row):
        """Claude Code asks for one token of "quota" before it begins."""
        one = Choice(0, assistant("I"), "length")
        probe = insert([user("quota")], caller=Caller("small", session="s"), choices=(one,))
        top = insert(ASK, caller=NAMED)
        assert [branch(row(i)) for i in (probe, top)] == ["title", "main"]
        assert session_row(row(top).session_id).agent == "shop"
        for asked, reply, finish in (
            ("quota", "I", "stop"),
            ("quota", "I would", "stop"),
            ("is it late", "I", "length"),
        ):
            kept = insert([user(asked)], caller=Caller("shop"), choices=(Choice(0, assistant(reply), finish),))
            assert branch(row(kept)) == "main"

    def test_after_a_compaction_the_main_branch_goes_on(self, insert, row):
        top = insert(ASK, caller=NAMED)
        short = insert([*ASK, assistant("hello"), SUMMARIZE], SUMMARY, NAMED)
        after = insert([SHOP, user(f"We go on.\n{SUMMARY}")], "sure", NAMED)
        assert [branch(row(i)) for i in (top, short, after)] == ["main", "compaction", "main"]
        assert [row(i).parent_exchange_id for i in (short, after)] == [top, short]

    def test_a_sub_agents_compaction_goes_on_as_the_sub_agent(self, insert, row):
        insert(ASK, caller=NAMED)
        helper = [system("You search the order book."), user("parcel 7")]
        sub = insert(helper, "found", NAMED)
        short = insert([*helper, assistant("found"), SUMMARIZE], SUMMARY, NAMED)
        after = insert([helper[0], user(SUMMARY)], "on", NAMED)
        assert [branch(row(i)) for i in (sub, short, after)] == ["sub_agent", "compaction", "sub_agent"]

    def test_what_the_request_says_of_itself_counts_before_what_it_looks_like(self, insert, row):
        insert(ASK, caller=NAMED)
        told = insert([*ASK, assistant("hello"), user("x")], "y", Caller("shop", session="s", branch=Branch.SUB_AGENT))
        imported = insert(ASK, "z", NAMED, branch=Branch.TITLE, started_at=5000.0)
        assert [branch(row(i)) for i in (told, imported)] == ["sub_agent", "title"]

    def test_a_sub_agent_with_a_session_of_its_own_knows_its_parent(self, insert, row, session_row):
        top = insert(ASK, caller=NAMED)
        child = insert([user("help")], "ok", Caller("shop", session="child", parent_session="s"))
        early = insert([user("help")], "ok", Caller("shop", session="early", parent_session="unknown yet"))
        inside = insert([user("help me")], "ok", Caller("shop", parent_session="s"))
        assert session_row(row(child).session_id).parent_session_id == row(top).session_id
        assert session_row(row(early).session_id).parent_session_id == "unknown yet"
        assert (row(inside).session_id, branch(row(inside))) == (row(top).session_id, "sub_agent")
        assert branch(row(child)) == "main"  # of its own session


class TestSystems:
    def test_a_system_message_that_changes_every_turn(self, insert, row):
        first = insert([system("Shop. It is 10:00."), ASK[1]])
        second = insert([system("Shop. It is 10:01."), ASK[1], assistant("hello"), user("and?")], "sure")
        assert row(second).parent_exchange_id == first
        assert row(second).session_id == row(first).session_id

    def test_two_sessions_that_could_be_meant_are_not_mixed(self, insert, row):
        ada = insert([system("Help Ada."), user("hi")])
        bob = insert([system("Help Bob."), user("hi")])
        back = insert([system("Help Ada."), user("hi"), assistant("hello"), user("and?")])
        assert row(back).session_id == row(ada).session_id
        carl = insert([system("Help Carl."), user("hi"), assistant("hello"), user("and?")])
        assert row(carl).session_id not in (row(ada).session_id, row(bob).session_id)

    def test_a_hand_off_inside_a_named_session_stays_on_its_branch(self, insert, row):
        top = insert(ASK, caller=NAMED)
        insert([system("Other."), user("where is my parcel?")], "hello", NAMED)
        taken = insert([system("You refund."), ASK[1], assistant("hello"), user("refund it")], "done", NAMED)
        assert row(taken).session_id == row(top).session_id
        assert row(taken).parent_exchange_id is not None


class TestHints:
    def test_a_new_name_with_every_request_does_not_part_a_conversation(self, insert, row):
        first = insert(ASK, caller=Caller("shop", session_hint="request 1"))
        second = insert([*ASK, assistant("hello"), user("and?")], "x", Caller("shop", session_hint="request 2"))
        assert row(second).session_id == row(first).session_id

    def test_one_name_for_all_does_not_join_conversations(self, insert, row):
        everywhere = Caller("shop", session_hint="cache")
        first, other = insert(ASK, caller=everywhere), insert([SHOP, user("hi")], caller=everywhere)
        assert row(first).session_id != row(other).session_id
        back = insert([*ASK, assistant("hello"), user("and?")], "x", everywhere)
        assert row(back).session_id == row(first).session_id

    def test_a_trace_joins_the_sub_agents_of_one_run(self, insert, row):
        run = Caller("shop", session_hint="trace")
        top = insert(ASK, caller=run)
        sub = insert([system("You search the order book."), user("parcel 7")], "found", run)
        assert (row(sub).session_id, branch(row(sub))) == (row(top).session_id, "sub_agent")

    def test_among_equal_histories_the_hinted_session_is_meant(self, insert, row):
        a, b = Caller("shop", session_hint="a"), Caller("shop", session_hint="b")
        first, second = insert(ASK, caller=a), insert(ASK, caller=b)
        more = [*ASK, assistant("hello"), user("and?")]
        assert row(insert(more, "x", a)).session_id == row(first).session_id
        assert row(insert(more, "x", b)).session_id == row(second).session_id


class TestPreviousResponses:
    def test_a_reply_named_by_its_id_is_continued(self, store, insert, row):
        first = insert([user("hi")], upstream_id="resp_1")
        second = insert([user("and?")], "x", Caller("shop", previous_response="resp_1"), upstream_id="resp_2")
        third = insert([user("so?")], "y", Caller("shop", previous_response=second))
        assert [row(i).parent_exchange_id for i in (second, third)] == [first, second]
        assert len({row(i).session_id for i in (first, second, third)}) == 1
        assert row(third).context_complete

    def test_one_that_was_never_seen_leaves_the_context_incomplete_from_there_on(self, store, insert, row):
        lost = insert([user("hi")], "x", Caller("shop", previous_response="resp_0"), upstream_id="resp_1")
        below = insert([user("and?")], "x", Caller("shop", previous_response="resp_1"))
        assert not row(lost).context_complete
        assert not row(below).context_complete
        with store.read() as conn:
            assert not load_exchange(conn, "default", below).context_complete


def test_a_cut_reply_is_continued_where_the_agent_left(insert, row):
    """B10: an agent closes the stream once its tool call has arrived, and goes on with what it got."""
    call = {"id": "c", "type": "function", "function": {"name": "track", "arguments": '{"n": 7}'}}
    got = {"role": "assistant", "content": None, "tool_calls": [call]}
    cut = insert(ASK, choices=(Choice(0, got, None),), status="client_closed")
    after = insert([*ASK, got, {"role": "tool", "tool_call_id": "c", "content": "late"}], "It is late.")
    assert row(after).parent_exchange_id == cut
    assert [branch(row(i)) for i in (cut, after)] == ["main", "main"]


def test_reused_call_ids_stay_as_they_are_and_part_nothing(store, insert, row):
    """B11: one id for calls of turns 1 and 2, twice in one message, and empty; a client may renumber them later."""

    def calls(*ids: str) -> Json:
        made = [
            {"id": i, "type": "function", "function": {"name": f"f{n}", "arguments": "{}"}} for n, i in enumerate(ids)
        ]
        return {"role": "assistant", "content": None, "tool_calls": made}

    def results(*ids: str) -> list[Json]:
        return [{"role": "tool", "tool_call_id": i, "content": f"result {n}"} for n, i in enumerate(ids)]

    history: list[Json] = list(ASK)
    turns = []
    for ids in (("a", "a"), ("a",), ("", "")):
        turns.append(insert(list(history), choices=(Choice(0, calls(*ids), "tool_calls"),)))
        history += [calls(*ids), *results(*ids)]
    renumbered = [
        {**m, "tool_calls": [{**c, "id": f"new {n}"} for n, c in enumerate(m["tool_calls"])]}
        if "tool_calls" in m
        else m
        for m in history
    ]
    last = insert(renumbered, "done")
    assert [row(i).parent_exchange_id for i in (*turns, last)] == [None, *turns]
    with store.read() as conn:
        kept = load_exchange(conn, "default", turns[2])
        asked = load_exchange(conn, "default", last)
    assert [m.get("tool_call_id") for m in kept.messages if m["role"] == "tool"] == ["a", "a", "a"]
    assert [c["id"] for c in kept.choices[0].message["tool_calls"]] == ["", ""]
    assert asked.messages == tuple(renumbered)
