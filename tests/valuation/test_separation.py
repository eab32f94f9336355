"""Areas and shares by hand, and intervals that count clusters."""

from __future__ import annotations

import numpy as np
import pytest

from nightschool.valuation.separation import auc, cluster_draws, estimate, share, weighted_auc


def area(scores: list[float], positive: list[bool], **more: list[int]) -> float:
    found = {name: np.array(values) for name, values in more.items()}
    weights = found.pop("weights", np.ones(len(scores)))[None]
    return float(weighted_auc(np.array(scores), np.array(positive), weights, **found)[0])


def test_ties_count_half() -> None:
    # pairs of a positive and another: 3>1, 3>2, 2>1 won, 2=2 half: 3.5 of 4
    assert area([3, 2, 1, 2], [True, True, False, False]) == 3.5 / 4
    assert area([1, 2], [True, False]) == 0.0


def test_a_row_drawn_twice_counts_twice_and_one_not_drawn_not_at_all() -> None:
    # 2 beats 1 but not 3: half; with the 3 drawn three times, 1 of 4 pairs is won; without it all
    assert area([2, 1, 3], [True, False, False], weights=[1, 1, 3]) == 0.25
    assert area([2, 1, 3], [True, False, False], weights=[5, 1, 0]) == 1.0
    assert np.isnan(area([2, 1], [True, True]))


def test_rows_of_different_fits_are_not_compared() -> None:
    # a second fit scores everything ten higher: within each fit the positive row wins, across them it loses
    scores, positive = [1, 0, 11, 10], [True, False, True, False]
    assert area(scores, positive) == 0.75
    assert area(scores, positive, strata=[0, 0, 1, 1]) == 1.0


def test_whole_clusters_are_drawn() -> None:
    draws = cluster_draws(["a", "b", "a", "c"], num=50)
    assert draws.shape == (50, 4)
    assert (draws[:, 0] == draws[:, 2]).all()
    assert (draws[:, [0, 1, 3]].sum(axis=1) == 3).all()
    assert (draws == cluster_draws(["a", "b", "a", "c"], num=50)).all()


def test_repeating_every_row_makes_no_interval_narrower() -> None:
    rng = np.random.default_rng(0)
    scores, positive = rng.normal(size=60), rng.random(60) < 0.5
    people = [str(n) for n in range(60)]
    once = auc(scores, positive, cluster_draws(people))
    thrice = auc(np.tile(scores, 3), np.tile(positive, 3), cluster_draws(people * 3))
    assert once is not None
    assert thrice is not None
    assert (thrice.value, thrice.low, thrice.high) == pytest.approx((once.value, once.low, once.high))
    assert auc(scores, np.zeros(60, dtype=bool), cluster_draws(people)) is None


def test_a_share_counts_those_who_answered() -> None:
    # 1 of 2 answers, Beta(1.5, 1.5): its ends lie symmetrically about a half
    both = share(np.array([1.0, 0.0]), ["a", "b"])
    assert both is not None
    assert both.value == 0.5
    assert both.low + both.high == pytest.approx(1.0)
    many = share(np.array([1.0, 0.0] * 50), ["a", "b"] * 50)
    assert many == both
    everyone = share(np.ones(20), [str(n) for n in range(20)])
    assert everyone is not None
    # Beta(20.5, 0.5) at 0.025
    assert (round(everyone.low, 3), everyone.high) == (0.883, 1.0)
    assert share(np.zeros(0), []) is None


def test_draws_without_a_value_do_not_count() -> None:
    found = estimate(0.5, np.array([np.nan, 0.2, 0.4]))
    # quantiles of two draws lie on the line between them
    assert (found.low, found.high) == (pytest.approx(0.205), pytest.approx(0.395))
