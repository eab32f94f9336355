"""The rate of everybody, of whom only some spoke."""

from __future__ import annotations

import numpy as np
import pytest

from nightschool.errors import TooLittleDataError
from nightschool.valuation.missing import Heard, asked_bounds, spoken_rate, stratified_rate


def crowd(count: int = 4000, seed: int = 0, by_outcome: bool = False) -> tuple[Heard, np.ndarray, float]:
    """Two kinds of requests, easy (90 % succeed) and hard (40 %). People speak of hard ones in 60 % of the cases and of
    easy ones in 10 %; with `by_outcome` they speak of failures in 60 % and of successes in 10 %. And the true rate."""
    rng = np.random.default_rng(seed)
    hard = rng.random(count) < 0.5
    good = rng.random(count) < np.where(hard, 0.4, 0.9)
    chance = np.where(~good if by_outcome else hard, 0.6, 0.1)
    heard = rng.random(count) < chance
    rows = Heard(heard, np.where(heard, good, 0.0).astype(float), [f"user {i}" for i in range(count)])
    return rows, np.where(hard, 0.6, 0.1), float(good.mean())


def test_strata_put_right_what_requests_explain() -> None:
    rows, chances, true = crowd()
    # those who spoke: (0.5 * 0.6 * 0.4 + 0.5 * 0.1 * 0.9) / 0.35 = 0.471, of everybody 0.65
    assert spoken_rate(rows).value == pytest.approx(0.471, abs=0.03)
    found = stratified_rate(rows, chances)
    assert found.low < true < found.high
    assert found.high - found.low < 0.1


def test_what_outcomes_themselves_silence_no_stratum_puts_right_and_bounds_say_so() -> None:
    rows, chances, true = crowd(by_outcome=True)
    assert stratified_rate(rows, chances).high < true
    bounds = asked_bounds(rows)
    assert bounds.lowest <= bounds.low < true < bounds.high <= bounds.highest


def test_bounds_of_a_worked_case() -> None:
    # 40 were asked: 10 content, 10 not, 20 silent: between 10/40 and 30/40
    heard = np.array([True] * 20 + [False] * 20)
    rewards = np.array([1.0] * 10 + [0.0] * 30)
    bounds = asked_bounds(Heard(heard, rewards, [str(i) for i in range(40)]))
    assert (bounds.low, bounds.high, bounds.answered, bounds.asked) == (0.25, 0.75, 0.5, 40)
    error = (0.25 * 0.75 / 39) ** 0.5
    assert bounds.lowest == pytest.approx(0.25 - 1.959964 * error)
    assert bounds.highest == pytest.approx(0.75 + 1.959964 * error)


def test_where_all_answer_the_bounds_meet() -> None:
    rows, _, _ = crowd(400)
    everyone = Heard(np.ones(400, dtype=bool), rows.rewards, rows.clusters)
    bounds = asked_bounds(everyone)
    assert bounds.low == bounds.high == pytest.approx(rows.rewards.mean())


def test_a_stratum_in_which_nobody_spoke_joins_another() -> None:
    heard = np.array([False] * 40 + [True] * 60)
    rows = Heard(heard, heard * 0.5, [str(i) for i in range(100)])
    assert stratified_rate(rows, np.arange(100.0)).value == pytest.approx(0.5)


def test_one_user_s_many_replies_are_one_voice() -> None:
    rows, _, _ = crowd(400)
    shared = Heard(rows.heard, rows.rewards, [f"user {i % 10}" for i in range(400)])
    assert spoken_rate(shared).error != pytest.approx(spoken_rate(rows).error, rel=1e-3)
    with pytest.raises(TooLittleDataError):
        spoken_rate(Heard(rows.heard, rows.rewards, ["ann"] * 400))


def test_too_few_say_nothing() -> None:
    few = Heard(np.array([True] * 19 + [False] * 100), np.zeros(119), [str(i) for i in range(119)])
    with pytest.raises(TooLittleDataError, match="no rate"):
        spoken_rate(few)
    with pytest.raises(TooLittleDataError, match="no rate"):
        stratified_rate(few, np.zeros(119))
    with pytest.raises(TooLittleDataError, match="no bounds"):
        asked_bounds(few.of(np.arange(19)))
