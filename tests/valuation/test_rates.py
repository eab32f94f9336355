"""Rates behind an imperfect judge: section 8 of the specification, and what must hold of them."""

from __future__ import annotations

import numpy as np
import pytest

from nightschool.errors import RefusedError, TooLittleDataError
from nightschool.valuation.rates import Judged, agreement, corrected_rate, unflipped


def near(value: float) -> object:
    return pytest.approx(value, abs=1e-5)


def test_a_flipped_reward_is_stretched() -> None:
    # e0 = 0.1, e1 = 0.15: (1 - 0.1) / 0.75 and -0.1 / 0.75
    assert unflipped(1, 0.1, 0.15) == near(1.2)
    assert unflipped(0, 0.1, 0.15) == near(-0.133333)


def test_in_expectation_it_is_the_true_one() -> None:
    for e0, e1 in ((0.0, 0.3), (0.2, 0.1)):
        of_good = (1 - e1) * unflipped(1, e0, e1) + e1 * unflipped(0, e0, e1)
        of_bad = e0 * unflipped(1, e0, e1) + (1 - e0) * unflipped(0, e0, e1)
        assert (of_good, of_bad) == (pytest.approx(1), pytest.approx(0))


def test_a_coin_cannot_be_corrected_for() -> None:
    with pytest.raises(RefusedError, match="cannot be corrected"):
        unflipped(1, 0.5, 0.5)
    with pytest.raises(RefusedError):
        corrected_rate(0.7, 400, Judged(30, 100, 60, 100))


def test_the_golden_rate() -> None:
    found = corrected_rate(0.70, 400, Judged(108, 120, 68, 80))  # q1 = 0.90 of 120, q0 = 0.85 of 80
    assert (found.value, found.error) == (near(0.733333), near(0.043033))
    assert (found.low, found.high) == (near(0.648988), near(0.817678))


def test_nothing_labelled_corrects_nothing() -> None:
    for judge in (Judged(0, 0, 8, 10), Judged(8, 10, 0, 0)):
        with pytest.raises(TooLittleDataError):
            corrected_rate(0.7, 400, judge)


def test_its_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    truth, q1, q0, covered = 0.6, 0.85, 0.8, 0
    for _ in range(400):
        good = rng.random(300) < truth
        said = np.where(good, rng.random(300) < q1, rng.random(300) > q0)
        judge = Judged(int(rng.binomial(100, q1)), 100, int(rng.binomial(100, q0)), 100)
        found = corrected_rate(float(said.mean()), 300, judge)
        covered += found.low <= truth <= found.high
    # 95 % of 400, give or take three standard errors of 4.4
    assert abs(covered - 380) < 14


def test_agreement_beyond_chance() -> None:
    # they agree on 4 of 5, by chance on 0.6 * 0.8 + 0.4 * 0.2 = 0.56
    assert agreement([True] * 3 + [False] * 2, [True] * 4 + [False]) == pytest.approx((0.8 - 0.56) / 0.44)
    ten = [True] * 5 + [False] * 5
    other = [True] * 4 + [False] + [True] + [False] * 4
    assert agreement(ten, other) == near(0.6)
    assert agreement([True, True], [True, True]) is None
    assert agreement([], []) is None
