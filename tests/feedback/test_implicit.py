"""Signals of stored sessions, and what is learned of them."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from traffic import fix_splits, record_turn, say

from nightschool.feedback.implicit.combination import fit_combination
from nightschool.feedback.implicit.labels import About, Rows, rows_of
from nightschool.feedback.implicit.loading import each_seen
from nightschool.feedback.implicit.report import MIN_LABELS, weigh
from nightschool.feedback.implicit.seen import Seen, Span, Spot
from nightschool.feedback.reward import RewardRule, combine, judges, pair
from nightschool.imports.taking import Wish, quiet, take
from nightschool.store.database import Store
from nightschool.types import Branch, Feedback, FeedbackKind, Json, Purpose, Split, TargetKind

SYSTEM: Json = {"role": "system", "content": "shop"}
NOW = 1_772_366_400.0
DAY = 86_400.0


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def agent(text: str) -> Json:
    return {"role": "assistant", "content": text}


def turn(store: Store, messages: list[Json], reply: str, **more: Any) -> str:
    return record_turn(store, messages, reply, (1,), None, **{"session": "s", "user": "ann", "at": NOW, **more})


def sessions(store: Store, as_of: float = NOW + 30 * DAY, name: str = "shop") -> list[Seen]:
    with store.read() as conn:
        return list(each_seen(conn, store.tenant, name, as_of, 100, tuple(Split)))


def test_a_session_is_its_main_branch_with_the_exchange_of_every_message(store: Store) -> None:
    asked = [SYSTEM, user("Where is it?")]
    one = turn(store, asked, "Which order?")
    beside = turn(store, [SYSTEM, user("Write a title")], "Parcel", at=NOW + 1, branch=Branch.TITLE)
    two = turn(store, [*asked, agent("Which order?"), user("No. 7")], "On its way.", at=NOW + 2)
    (seen,) = sessions(store)
    assert [message["content"] for message in seen.messages] == [
        "shop", "Where is it?", "Which order?", "No. 7", "On its way.",
    ]  # fmt: skip
    assert seen.spots == tuple(Spot(one if place < 3 else two, place + 1) for place in range(5))
    assert ({call.id for call in seen.calls}, seen.main) == ({one, two, beside}, {one, two})


def test_a_branch_begun_anew_brings_what_is_new_in_it(file_store: Store) -> None:
    turn(file_store, [SYSTEM, user("Where is it?")], "Which order?")
    # a harness that keeps its own memory sends no history
    two = turn(file_store, [SYSTEM, user("No. 7")], "On its way.", at=NOW + 2)
    (seen,) = sessions(file_store)
    assert [message["content"] for message in seen.messages] == [
        "shop", "Where is it?", "Which order?", "No. 7", "On its way.",
    ]  # fmt: skip
    assert seen.spots[3:] == (Spot(two, 2), Spot(two, 3))


def test_whose_session_comes_next_and_which_are_not_read(store: Store) -> None:
    fix_splits(store)
    turn(store, [user("Hello")], "Hi", session="first")
    turn(store, [user("Hello again")], "Hi", session="second", at=NOW + DAY)
    turn(store, [user("Exam")], "Hi", session="third", at=NOW + 2 * DAY, purpose=Purpose.EXAM)
    turn(store, [user("Elsewhere")], "Hi", session="fourth", at=NOW + 2 * DAY, agent="other")
    first, second = sessions(store)
    assert (first.next_at, second.next_at) == (NOW + DAY, None)
    assert [seen.id for seen in sessions(store, as_of=NOW + DAY / 2)] == [first.id]


def test_what_the_gate_alone_may_look_at_is_not_read(file_store: Store) -> None:
    for number in range(40):
        turn(file_store, [user(f"Hello {number}")], "Hi", session=f"s{number}", user=f"u{number}")
    with file_store.read() as conn:
        read = {seen.id for seen in each_seen(conn, file_store.tenant, "shop", NOW + DAY, 100)}
    assert 0 < len(read) < 40
    assert len(sessions(file_store)) == 40


def test_labels_are_of_the_session_else_of_turns_that_agree_and_never_implicit(file_store: Store) -> None:
    asked = [user("Where is it?")]
    one = turn(file_store, asked, "Which order?")
    two = turn(file_store, [*asked, agent("Which order?"), user("No. 7")], "On its way.", at=NOW + 2)

    def label() -> float:
        return float(rows_of(sessions(file_store, time.time() + DAY), RewardRule()).labels[0])

    assert np.isnan(label())
    say(file_store, FeedbackKind.THUMB, False, exchange=one)
    assert label() == 0.0
    say(file_store, FeedbackKind.THUMB, True, exchange=two)
    assert np.isnan(label())
    say(file_store, FeedbackKind.THUMB, True, session="s")
    assert label() == 1.0


def test_what_nobody_said_on_purpose_is_no_judgement() -> None:
    item = Feedback("i", TargetKind.SESSION, "s", FeedbackKind.THUMB, True, "accepted", "implicit", session_id="s")
    assert not judges(item)
    assert combine([item], RewardRule()).reason == "no feedback"
    both = [item, replace(item, id="j", value=False, name="thumb", source="end_user")]
    assert combine(both, RewardRule()).value == 0.0
    text = replace(item, id="t", kind=FeedbackKind.TEXT, value="fine", name="text", source="end_user")
    assert pair([item, text]) is None
    assert pair([*both, text]) == ("fine", False)


def reported(name: str, value: object) -> Feedback:
    return Feedback(name, TargetKind.SESSION, "s", FeedbackKind.THUMB, value, name, "implicit", session_id="s")


def column(name: str, told: list[tuple[Feedback, ...]]) -> list[float]:
    rows = rows_of([Seen(f"s{n}", "ann", (), (), feedback=items) for n, items in enumerate(told)], RewardRule())
    return rows.values[:, rows.names.index(name)].tolist()


def test_silence_of_a_client_that_reports_one_side_says_the_other() -> None:
    told = column("event copied", [(), (reported("copied", True),), (), (reported("copied", True),)])
    assert told == pytest.approx([np.nan, 1.0, 0.0, 1.0], nan_ok=True)
    told = column("event copied", [(), (reported("copied", True),), (), (reported("copied", False),)])
    assert told == pytest.approx([np.nan, 1.0, np.nan, 0.0], nan_ok=True)


def test_examples_are_the_newest_and_told_where(file_store: Store) -> None:
    for number in range(5):
        turn(
            file_store, [user("Refund")], "I cannot do that.", session=f"s{number}", user=f"u{number}", at=NOW + number
        )
    rows = rows_of(sessions(file_store), RewardRule())
    names = [store_session for store_session, _ in rows.examples["refusal"]]
    assert names == [rows.about[number].session_id for number in (4, 3, 2)]
    assert all(span.text == "I cannot" for _, span in rows.examples["refusal"])


def made(num: int, effect: float, seed: int = 0, per_person: int = 1) -> Rows:
    """Sessions with two signals: the first moves the log-odds of success by `effect`, the second does nothing."""
    rng = np.random.default_rng(seed)
    values = (rng.random((num, 2)) < 0.4).astype(float)
    success = rng.random(num) < 1 / (1 + np.exp(-(effect * (values[:, 0] - 0.4))))
    names = ("escalation", "thanks")
    people = tuple(About(f"s{n}", f"u{n // per_person}") for n in range(num))
    return Rows(names, values, success.astype(float), people)


def told_of(rows: Rows, name: str) -> Json:
    return next(one for one in weigh(rows).report["signals"] if one["name"] == name)


@pytest.mark.parametrize(("effect", "means"), [(3.0, "success"), (-3.0, "failure")])
def test_signs_are_learned(effect: float, means: str) -> None:
    learned = weigh(made(300, effect))
    assert (learned.against, learned.report["trains"]) == (None, True)
    escalation, thanks = learned.report["signals"]
    assert (escalation["says"], thanks["says"]) == (means, "cannot tell")
    weight = escalation["weight"]
    assert weight["low"] > 0 if effect > 0 else weight["high"] < 0
    assert learned.model is not None
    with_, without = learned.model.predict(np.array([[1.0, 0.0], [0.0, 0.0]]))
    # log-odds of -1.2 and 1.8 without and with: 0.23 and 0.86
    assert (with_, without) == pytest.approx((0.86, 0.23) if effect > 0 else (0.14, 0.77), abs=0.1)
    assert learned.report["model"]["auc"]["low"] > 0.6


def test_noise_is_shown_and_not_trained() -> None:
    trained = [weigh(made(100, 0.0, seed)).report["trains"] for seed in range(4)]
    # an interval of 95 % lies above a half by chance 1 time in 40
    assert sum(trained) <= 1


def test_below_the_needed_labels_signals_are_counted_alone() -> None:
    rows = made(MIN_LABELS - 1, 3.0)
    found = weigh(rows).report
    assert (found["trains"], found["model"]) == (False, None)
    assert found["why"] == "49 sessions with signals were judged; 50 would do."
    assert found["signals"][0]["there"] == int(rows.values[:, 0].sum())
    assert [found["signals"][0][key] for key in ("auc", "says", "weight", "fails_with")] == [None] * 4
    few = made(100, 3.0, per_person=20)
    assert weigh(few).report["why"] == "5 users judged them; 10 would do."
    silent = replace(made(100, 3.0), labels=np.full(100, np.nan))
    assert weigh(silent).report["why"] == "0 sessions with signals were judged; 50 would do."
    assert weigh(rows_of([], RewardRule())).report["sessions"] == 0


def test_a_principal_never_informs_its_own_prediction() -> None:
    rows = made(120, 2.0, per_person=3)
    before = fit_combination(rows.names, rows.values, rows.labels, rows.principals)
    mine = np.array([person == "u7" for person in rows.principals])
    after = fit_combination(rows.names, rows.values, np.where(mine, 1 - rows.labels, rows.labels), rows.principals)
    assert (after.log_odds[mine] == before.log_odds[mine]).all()
    assert (after.log_odds[~mine] != before.log_odds[~mine]).any()


def test_the_unknown_is_neither_present_nor_absent() -> None:
    rows = made(200, 3.0)
    values = rows.values.copy()
    values[::4, 0] = np.nan
    model = fit_combination(rows.names, values, rows.labels, rows.principals)
    absent, unknown, present = model.predict(np.array([[0.0, 0.0], [np.nan, 0.0], [1.0, 0.0]]))
    assert absent < unknown < present
    told = told_of(replace(rows, values=values), "escalation")
    assert (told["known"], told["there"]) == (150, int(np.nansum(values[:, 0])))


def test_a_signal_that_never_varies_says_nothing() -> None:
    rows = made(200, 3.0)
    same = replace(rows, values=np.column_stack([rows.values[:, 0], np.ones(200)]))
    told = told_of(same, "thanks")
    assert (told["auc"], told["says"]) == (None, None)
    assert told["weight"]["value"] == pytest.approx(0, abs=1e-9)
    unknown = replace(rows, values=np.column_stack([rows.values[:, 0], np.full(200, np.nan)]))
    assert told_of(unknown, "thanks")["known"] == 0


def test_intervals_count_people_and_not_their_sessions() -> None:
    rows = made(150, 1.0)
    often = Rows(
        rows.names,
        np.repeat(rows.values, 4, axis=0),
        np.repeat(rows.labels, 4),
        tuple(one for one in rows.about for _ in range(4)),
    )
    once, again = told_of(rows, "thanks"), told_of(often, "thanks")
    for part in ("auc", "fails_with", "fails_without"):
        assert again[part] == pytest.approx(once[part])


@pytest.fixture
def data() -> Path:
    folder = os.environ.get("NIGHTSCHOOL_DATA")
    if not folder:
        pytest.skip("NIGHTSCHOOL_DATA names no folder of real runs")
    return Path(folder)


def test_real_runs_of_a_shop(file_store: Store, data: Path) -> None:
    take(data / "agentrx" / "tau_dataset_full.json", Wish(None, "shop", "shop"), file_store, quiet)
    read = sessions(file_store, time.time() + DAY)
    rows = rows_of(read, RewardRule())
    # 100 runs of which 27 failed; the user's last word stands after the last reply
    assert (len(rows.about), int((rows.labels < 0.5).sum())) == (100, 27)
    assert all("###STOP###" in seen.messages[-1]["content"] for seen in read if seen.messages[-1]["role"] == "user")
    assert sum(seen.messages[-1]["role"] == "user" for seen in read) > 70
    # measured before, of the same runs: messages 0.72, tool calls 0.69, tool errors 0.55
    found = weigh(rows).report
    told = {one["name"]: one for one in found["signals"]}
    measured = [round(told[name]["auc"]["value"], 2) for name in ("messages", "tool calls", "tool error")]
    assert measured == [0.72, 0.69, 0.55]
    assert told["messages"]["says"] == told["tool calls"]["says"] == "failure"
    assert told["escalation"]["says"] != "success"
    assert (told["repeat contact"]["known"], told["abandonment"]["says"]) == (0, None)
    span = Span(**{key: value for key, value in told["refusal"]["examples"][0].items() if key != "session_id"})
    assert span.text
