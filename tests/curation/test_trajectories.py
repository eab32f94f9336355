from __future__ import annotations

import time
from typing import Any

import pytest
from traffic import SYSTEM, record_session, record_turn, say

from nightschool.curation.trajectories import Loaded, load_trajectories
from nightschool.store.database import Store
from nightschool.types import Branch, FeedbackKind, Purpose, Sampler, Trajectory

THUMB = FeedbackKind.THUMB


def load(store: Store, as_of: float | None = None) -> Loaded:
    with store.read() as conn:
        return load_trajectories(conn, store.tenant, "shop", as_of or time.time() + 1)


def only(loaded: Loaded) -> Trajectory:
    (one,) = loaded.trajectories
    return one


def reasons(loaded: Loaded) -> dict[str, str]:
    return {left.exchange_id: left.reason for left in loaded.left_out}


def sampled(trajectory: Trajectory) -> list[int]:
    return [t for t, yes in zip(trajectory.token_ids, trajectory.completion_mask, strict=True) if yes]


def test_a_session_is_one_trajectory_and_only_sampled_tokens_are_marked(store: Store) -> None:
    ids = record_session(store, "where is parcel 7", seed=1, word=8)
    say(store, THUMB, True, session="session-1")
    one = only(load(store))
    assert one.exchange_ids == tuple(ids)
    assert one.request == "where is parcel 7"
    assert one.token_ids[: len(SYSTEM)] == SYSTEM
    # two replies of three tokens, between them four of a tool's result
    assert len(one.token_ids) == 30 + 5 + 3 + 4 + 3
    assert one.completion_mask == (*[False] * 35, *[True] * 3, *[False] * 4, *[True] * 3)
    assert sampled(one)[0] == 8
    assert [item.value for item in one.feedback] == [True]


def test_kinds_that_judge_nothing_do_not_hide_those_that_do(store: Store) -> None:
    first, second = record_session(store, "where is parcel 7", seed=1)
    say(store, FeedbackKind.CATEGORY, "parcels", session="session-1")
    say(store, THUMB, False, exchange=second)
    one = only(load(store))
    assert (one.exchange_ids, [item.value for item in one.feedback]) == ((second,), [False])
    assert reasons(load(store)) == {first: "no feedback on this turn"}


def test_feedback_that_came_later_than_as_of_is_not_seen(store: Store) -> None:
    record_session(store, "hello", seed=1)
    before = time.time()
    time.sleep(0.01)
    say(store, THUMB, True, session="session-1")
    assert only(load(store, as_of=before)).feedback == ()
    assert only(load(store, as_of=1.0) if False else load(store)).feedback != ()
    assert load(store, as_of=1.0).trajectories == ()


def test_feedback_on_a_turn_trains_that_turn_alone(store: Store) -> None:
    first, second = record_session(store, "hello", seed=1, word=8)
    say(store, THUMB, False, exchange=first)
    loaded = load(store)
    one = only(loaded)
    assert one.exchange_ids == (first,)
    assert len(one.token_ids) == 38
    assert sum(one.completion_mask) == 3
    assert reasons(loaded) == {second: "no feedback on this turn"}


def test_feedback_on_the_session_takes_the_whole_of_it(store: Store) -> None:
    ids = record_session(store, "hello", seed=1)
    say(store, THUMB, False, exchange=ids[0])
    say(store, THUMB, True, session="session-1")
    one = only(load(store))
    assert one.exchange_ids == tuple(ids)
    assert [item.value for item in one.feedback] == [True]


def test_side_branches_are_left_out_unless_judged(store: Store) -> None:
    ids = record_session(store, "hello", seed=1)
    side = record_turn(store, [{"role": "user", "content": "a title?"}], "T", (3, 4), (5, 2), session="session-1")
    assert reasons(load(store)) == {side: "side branch"}
    say(store, THUMB, True, exchange=side)
    loaded = load(store)
    assert {t.exchange_ids for t in loaded.trajectories} == {tuple(ids), (side,)}
    assert not loaded.left_out


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"sampler": Sampler(top_p=0.9)}, "truncated support"),
        ({"sampler": Sampler(temperature=0.0)}, "greedy decoding"),
        ({"sampler": Sampler(constraints="response_format")}, "constrained decoding"),
        ({"training_allowed": False}, "training denied"),
        ({"purpose": Purpose.EXAM}, "exam"),
        ({"flags": ("suspect_empty_args",)}, "suspect empty arguments"),
        ({"flags": ("redacted",)}, "redacted"),
        ({"context_complete": False}, "context incomplete"),
    ],
)
def test_what_may_not_be_trained_says_why(store: Store, more: dict[str, Any], reason: str) -> None:
    ids = record_session(store, "hello", seed=1, **more)
    loaded = load(store)
    assert not loaded.trajectories
    assert reasons(loaded) == dict.fromkeys(ids, reason)


def test_text_without_tokens_never_trains(store: Store) -> None:
    one = record_turn(store, [{"role": "user", "content": "hi"}], "ho", (), None, user="ann")
    assert reasons(load(store)) == {one: "text only"}


def test_a_session_with_one_bad_turn_is_refused_whole(store: Store) -> None:
    first = record_turn(store, [{"role": "user", "content": "hi"}], "a", (3, 4), (5, 2), session="s")
    history = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "b"},
    ]
    second = record_turn(store, history, "c", (3, 4, 5, 2, 6), (7, 2), session="s", sampler=Sampler(top_p=0.5))
    assert reasons(load(store)) == {first: "truncated support", second: "truncated support"}


def test_two_temperatures_do_not_mix(store: Store) -> None:
    first = record_turn(store, [{"role": "user", "content": "hi"}], "a", (3, 4), (5, 2), session="s")
    history = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "b"},
    ]
    second = record_turn(store, history, "c", (3, 4, 5, 2, 6), (7, 2), session="s", sampler=Sampler(temperature=0.5))
    assert reasons(load(store)) == {first: "mixed samplers", second: "mixed samplers"}


def test_an_aborted_reply_ends_the_branch_before_it(store: Store) -> None:
    ids = record_session(store, "hello", seed=1)
    history = [
        {"role": "system", "content": "shop"}, {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "call 1"}, {"role": "tool", "content": "done"},
        {"role": "assistant", "content": "reply 1"}, {"role": "user", "content": "and?"},
    ]  # fmt: skip
    longer = (*only(load(store)).token_ids, 66)
    cut = record_turn(store, history, "hm", longer, (5,), session="session-1", status="aborted")
    loaded = load(store)
    assert only(loaded).exchange_ids == tuple(ids)
    assert reasons(loaded) == {cut: "aborted"}


def test_a_fork_keeps_the_longer_branch(store: Store) -> None:
    ids = record_session(store, "hello", seed=1)
    first_prompt = only(load(store)).token_ids[:35]
    retry = record_turn(
        store, [{"role": "system", "content": "shop"}, {"role": "user", "content": "hello"}], "again", first_prompt,
        (9, 2), session="session-1",
    )  # fmt: skip
    loaded = load(store)
    assert only(loaded).exchange_ids == tuple(ids)
    assert reasons(loaded) == {retry: "side branch"}


USER, MORE = {"role": "user", "content": "hi"}, {"role": "user", "content": "b"}
HISTORY = [USER, {"role": "assistant", "content": "a"}, MORE]


def test_a_template_that_strips_reasoning_gives_a_row_a_turn_with_the_context_seen(store: Store) -> None:
    """B14. The first reply is thought (50, 51) and answer (5, 2); the second prompt shows the answer alone."""
    first = record_turn(store, [USER], "a", (3, 4), (50, 51, 5, 2), session="s")
    second = record_turn(store, HISTORY, "c", (3, 4, 5, 2, 6), (52, 7, 2), session="s")
    third_history = [*HISTORY, {"role": "assistant", "content": "c"}, MORE]
    third = record_turn(store, third_history, "d", (3, 4, 5, 2, 6, 52, 7, 2, 8), (9, 2), session="s")
    say(store, THUMB, True, session="s")
    loaded = load(store)
    assert not loaded.left_out
    rows = {t.exchange_ids: t for t in loaded.trajectories}
    assert set(rows) == {(first,), (second, third)}
    assert rows[first,].token_ids == (3, 4, 50, 51, 5, 2)
    assert sampled(rows[first,]) == [50, 51, 5, 2]
    # the answer of the first turn is context here: it was seen, but not sampled in this place
    assert rows[second, third].token_ids == (3, 4, 5, 2, 6, 52, 7, 2, 8, 9, 2)
    assert sampled(rows[second, third]) == [52, 7, 2, 9, 2]
    assert {t.vote for t in loaded.trajectories} == {(loaded.trajectories[0].session_id,)}
    assert [t.num_rows for t in loaded.trajectories] == [2, 2]


def test_what_was_sampled_is_trained_not_what_its_text_encodes_to(store: Store) -> None:
    """B15. A reply cut at its length limit; its text would encode to other, more ids. Separators stay masked."""
    record_turn(store, [USER], "a", (3, 4), (90, 91), session="s")
    record_turn(store, HISTORY, "c", (3, 4, 90, 91, 2, 11, 6), (7, 2), session="s")
    say(store, THUMB, True, session="s")
    one = only(load(store))
    assert one.token_ids == (3, 4, 90, 91, 2, 11, 6, 7, 2)
    # the end of turn (2) and the newline (11) that the template adds were not sampled
    assert one.completion_mask == (False, False, True, True, False, False, False, True, True)


def test_an_attempt_that_was_repeated_trains_once(store: Store) -> None:
    """B19. The first attempt timed out; the second one is the turn."""
    failed = record_turn(store, [USER], "a", (3, 4), (5,), session="s", status="client_closed", at=100.0)
    again = record_turn(store, [USER], "a", (3, 4), (5, 2), session="s", at=101.0)
    say(store, THUMB, True, session="s")
    loaded = load(store)
    assert only(loaded).exchange_ids == (again,)
    assert reasons(loaded) == {failed: "client_closed"}


def test_samples_that_are_alike_are_never_merged(store: Store) -> None:
    """B19. Four samples of one request, one of them judged: all stay, the others are side branches of it."""
    ids = [record_turn(store, [USER], "a", (3, 4), (5, 2), session="s", at=100.0) for _ in range(4)]
    for name in ids:
        say(store, THUMB, True, exchange=name)
    assert sorted(t.exchange_ids for t in load(store).trajectories) == sorted((i,) for i in ids)


def test_a_reply_that_was_cut_and_gone_on_from_bars_its_session(store: Store) -> None:
    """B10. The agent closed the stream once the call was there; the sequence has a part that may not train."""
    cut = record_turn(store, [USER], "a", (3, 4), (5,), session="s", status="client_closed")
    after = record_turn(store, HISTORY, "c", (3, 4, 5, 2, 6), (7, 2), session="s")
    say(store, THUMB, True, session="s")
    loaded = load(store)
    assert not loaded.trajectories
    assert reasons(loaded) == {cut: "client_closed", after: "client_closed"}


@pytest.mark.parametrize("branch", [Branch.TITLE, Branch.COMPACTION, Branch.SUB_AGENT])
def test_a_session_speaks_of_its_main_branch_alone(store: Store, branch: Branch) -> None:
    side = record_turn(store, [USER], "a", (3, 4), (5, 2), session="s", branch=branch)
    aside = [{"role": "assistant", "content": "a"}, MORE]
    longer = record_turn(store, [USER, *aside], "b", (3, 4, 5, 2, 6), (7, 2), session="s", branch=branch)
    main = record_turn(store, [MORE], "c", (8,), (9, 2), session="s")
    say(store, THUMB, True, session="s")
    loaded = load(store)
    assert only(loaded).exchange_ids == (main,)
    assert reasons(loaded) == dict.fromkeys((side, longer), "side branch")
    say(store, THUMB, False, exchange=side)
    assert {t.exchange_ids for t in load(store).trajectories} == {(main,), (side,)}


def test_a_conversation_goes_on_from_its_summary(store: Store) -> None:
    first = record_turn(store, [USER], "a", (3, 4), (5, 2), session="s")
    summary = "The customer wants parcel 7, which is late by now."
    record_turn(store, HISTORY, summary, (3, 4, 5, 2, 6), (70, 2), session="s", branch=Branch.COMPACTION)
    after = record_turn(store, [{"role": "user", "content": f"So far: {summary}"}], "c", (8, 70), (9, 2), session="s")
    say(store, THUMB, True, session="s")
    loaded = load(store)
    assert [t.exchange_ids for t in loaded.trajectories] == [(first,), (after,)]
    assert len({t.vote for t in loaded.trajectories}) == 1
    assert list(reasons(loaded).values()) == ["side branch"]


def test_a_harness_with_a_memory_of_its_own_begins_anew_every_turn(store: Store) -> None:
    turns = [
        record_turn(store, [{"role": "user", "content": f"memory {n}"}], "a", (3, n), (5, 2), session="s")
        for n in range(3)
    ]
    say(store, THUMB, True, session="s")
    assert sorted(t.exchange_ids for t in load(store).trajectories) == sorted((turn,) for turn in turns)


def test_other_agents_stay_out(store: Store) -> None:
    record_session(store, "hello", seed=1, agent="bank")
    loaded = load(store)
    assert not loaded.trajectories
    assert not loaded.left_out
