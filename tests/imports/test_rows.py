"""What people wrote becomes rows: corrections demonstrations and pairs, comparisons pairs, thumbs labels."""

from __future__ import annotations

from collections import Counter

import pytest
from traffic import fix_splits, record_turn, say

from nightschool.imports.paths import each_session
from nightschool.imports.rows import NO_REPLY, demonstrations, judged, preferences
from nightschool.store.database import Store
from nightschool.store.splits import split_key, split_of
from nightschool.types import FeedbackKind, Json, Split

ASKED: list[Json] = [{"role": "user", "content": "Where is my refund?"}]
FIRST, SECOND = "Refunds take five days to arrive.", "Order 7 was sent on Monday."
HISTORY = [*ASKED, {"role": "assistant", "content": FIRST}, {"role": "user", "content": "And order 7?"}]


@pytest.fixture
def store(file_store: Store) -> Store:
    fix_splits(file_store)
    return file_store


def trained(store: Store) -> str:
    """A user of the train split."""
    with store.read() as conn:
        key = split_key(conn, store.tenant)
    return next(name for name in map(str, range(100)) if split_of(key, name) == Split.TRAIN)


def two_turns(store: Store) -> list[str]:
    who = {"session": "s", "user": trained(store)}
    one = record_turn(store, ASKED, FIRST, (), None, at=1.0, **who)
    return [one, record_turn(store, HISTORY, SECOND, (), None, at=2.0, **who)]


def rows(store: Store, make) -> tuple[list[Json], Counter[str]]:
    left_out: Counter[str] = Counter()
    with store.read() as conn:
        found = [row for session in each_session(conn, store.tenant, "shop") for row in make(session, left_out)]
    return found, left_out


def test_a_correction_of_a_session_rewrites_the_reply_that_is_most_like_it(store):
    two_turns(store)
    say(store, FeedbackKind.CORRECTION, "Refunds take ten days to arrive.", session="s")
    better = {"role": "assistant", "content": "Refunds take ten days to arrive."}
    [row], left_out = rows(store, demonstrations)
    assert row["messages"] == [*ASKED, better]
    [pair], _ = rows(store, preferences)
    assert (pair["prompt"], pair["chosen"]) == (ASKED, [better])
    assert pair["rejected"] == [{"role": "assistant", "content": FIRST}]
    assert not left_out[NO_REPLY]


def test_a_correction_that_could_be_of_any_reply_trains_none(store):
    two_turns(store)
    say(store, FeedbackKind.CORRECTION, "We are closed.", session="s")
    found, left_out = rows(store, demonstrations)
    assert (found, left_out[NO_REPLY]) == ([], 1)
    assert rows(store, preferences)[0] == []


def test_a_comparison_of_a_session_names_its_answers(store):
    one, _ = two_turns(store)
    again = record_turn(store, ASKED, "It is on its way.", (), None, at=3.0, session="s", user=trained(store))
    say(store, FeedbackKind.PREFERENCE, {"chosen": {"exchange": again}, "rejected": {"exchange": one}}, session="s")
    [pair], _ = rows(store, preferences)
    assert pair["prompt"] == ASKED
    assert [pair[side][0]["content"] for side in ("chosen", "rejected")] == ["It is on its way.", FIRST]


def test_answers_to_different_requests_are_no_pair(store):
    one, two = two_turns(store)
    value = {"chosen": {"exchange": one}, "rejected": {"exchange": two}}
    say(store, FeedbackKind.PREFERENCE, value, author="ann", exchange=two)
    say(store, FeedbackKind.PREFERENCE, {"chosen": {"text": "A"}, "rejected": {"text": "B"}}, author="bob", session="s")
    found, left_out = rows(store, preferences)
    assert found == []
    assert left_out["preference: an answer that is not there"] == 2


def test_thumbs_become_labels(store):
    one, two = two_turns(store)
    say(store, FeedbackKind.THUMB, True, exchange=one)
    say(store, FeedbackKind.THUMB, False, exchange=two)
    found, _ = rows(store, judged)
    assert [(row["completion"][0]["content"], row["label"]) for row in found] == [(FIRST, True), (SECOND, False)]
