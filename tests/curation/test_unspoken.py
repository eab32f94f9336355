"""Signals in the place of a judgement: where the report allows it, of silent sessions alone, and when asked for."""

from __future__ import annotations

import time
from dataclasses import replace
from random import Random

from traffic import fix_splits, record_turn, say

from nightschool.curation.dataset import CurationRule, Dataset, Wanted, build_dataset
from nightschool.curation.influence import Cap, InfluenceRule
from nightschool.curation.unspoken import Unspoken
from nightschool.feedback.reward import NO_FEEDBACK, Reward
from nightschool.store.database import Store
from nightschool.types import FeedbackKind, Json, LedgerState, Sampler, Split, Trajectory

NOW = 1_772_366_400.0
JUDGED, SILENT = 140, 40
OPEN = Cap(share=1.0, floor=0, ceiling=10_000)  # the requests and replies of a day are much alike


def day(store: Store, telling: float) -> dict[str, bool]:
    """Sessions whose second message complains of a failure, or gives thanks, with the chance `telling` of being right;
    the first are judged. Of each silent one's last exchange: whether it complains."""
    fix_splits(store)
    rng = Random(0)
    complains: dict[str, bool] = {}
    for number in range(JUDGED + SILENT):
        good = rng.random() < 0.5
        angry = good != (rng.random() < telling)
        asked: list[Json] = [{"role": "user", "content": f"refund order {number}"}]
        who = {"session": f"s{number}", "user": f"u{number}", "at": NOW + 10 * number}
        first = (10, 11, 20 + number % 50)
        record_turn(store, asked, "done", first, (7, 2), **who)
        answer = {"role": "user", "content": "No, this is wrong and useless." if angry else "Thank you very much."}
        history = [*asked, {"role": "assistant", "content": "done"}, answer]
        last = record_turn(store, history, "well", (*first, 7, 2, 5), (8, 2), **{**who, "at": who["at"] + 5})
        if number < JUDGED:
            say(store, FeedbackKind.THUMB, good, session=f"s{number}", author=f"u{number}")
        else:
            complains[last] = angry
    return complains


def dataset(store: Store, signals: bool) -> Dataset:
    rule = CurationRule(signals=signals, influence=InfluenceRule(OPEN, OPEN, OPEN, OPEN, quarantine_days=0.0))
    wanted = Wanted("shop", "base", time.time() + 60, rule, valued=False)
    with store.read() as conn:
        return build_dataset(conn, store.tenant, wanted)


def test_silent_sessions_train_by_their_signals_where_asked(file_store: Store) -> None:
    complains = day(file_store, telling=0.9)
    without = dataset(file_store, signals=False)
    assert without.summary["signals"] is None
    assert not {sample.id for sample in without.train} & set(complains)
    found = dataset(file_store, signals=True)
    rewards = {sample.id: sample.reward for sample in found.train if sample.id in complains}
    trained = {line.exchange_id for line in found.lines if line.state == LedgerState.TRAINED}
    assert len(rewards) > 20
    assert set(rewards) <= trained
    # nine in ten complaints are of failures: near 0.1 and 0.9
    for name, reward in rewards.items():
        assert reward is not None
        assert reward < 0.3 if complains[name] else reward > 0.7
    assert found.summary["signals"]["used"] is True
    judged = {sample.id: sample.reward for sample in found.train if sample.id not in complains}
    assert set(judged.values()) == {0.0, 1.0}
    assert judged == {sample.id: sample.reward for sample in without.train}


def test_signals_that_tell_nothing_train_nothing(file_store: Store) -> None:
    complains = day(file_store, telling=0.5)
    found = dataset(file_store, signals=True)
    assert not {sample.id for sample in found.train} & set(complains)
    assert found.summary["signals"]["used"] is False
    assert found.summary["signals"]["why"]


def test_what_was_said_is_never_overruled_and_turns_beside_get_nothing() -> None:
    row = Trajectory(
        "s", ("a", "b"), "shop", "ann", Split.TRAIN, ("base",), (1, 2), (False, True), (None, None), "x", NOW, Sampler()
    )  # fmt: skip
    unspoken = Unspoken({"s": (0.8, frozenset({"a", "b"}))}, "signals-1-x")
    nothing = Reward(None, NO_FEEDBACK)
    assert unspoken.reward(row, nothing) == Reward(0.8, "signals (signals-1-x)")
    assert unspoken.reward(row, Reward(0.0, "thumb")) == Reward(0.0, "thumb")
    assert unspoken.reward(row, Reward(None, "text not calibrated")).value is None
    for other in (
        replace(row, session_id="t"),
        replace(row, exchange_ids=("a", "beside")),
        replace(row, split=Split.SELECT),
    ):
        assert unspoken.reward(other, nothing) == nothing
    assert Unspoken().reward(row, nothing) == nothing
