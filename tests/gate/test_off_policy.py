"""Estimates from logs: the golden numbers of the specification (11.3), recomputed, and what must hold of any log."""

from __future__ import annotations

import numpy as np
import pytest

from nightschool.errors import TooLittleDataError
from nightschool.gate.off_policy import (
    Logged,
    Overlap,
    Standing,
    gain,
    least_gain,
    normalized_gain,
    overlap,
    sign_of_gain,
)

INCUMBENT = [[-0.5, -1.2, -0.3], [-0.9, -0.4], [-1.5, -0.7, -0.2, -0.6], [-0.8, -1.1], [-0.3, -0.6, -0.9]]
CANDIDATE = [[-0.4, -0.9, -0.3], [-1.3, -0.6], [-1.2, -0.9, -0.2, -0.4], [-1.4, -1.3], [-0.2, -0.7, -0.5]]
REWARDS = np.array([1.0, 0, 1, 0, 1])
VALUES = np.array([0.6, 0.4, 0.5, 0.3, 0.7])
JUDGED = np.array([0.7, 0.3, 0.6, 0.2, 0.8])
OF_CANDIDATE = np.array([0.65, 0.45, 0.55, 0.4, 0.72])
OF_INCUMBENT = np.array([0.6, 0.38, 0.5, 0.33, 0.69])


def golden() -> Logged:
    ratios = np.array([sum(c) - sum(b) for c, b in zip(CANDIDATE, INCUMBENT, strict=True)])
    return Logged(ratios, REWARDS, VALUES, ["a", "b", "c", "d", "e"])


def near(value: float) -> object:
    return pytest.approx(value, abs=1e-5)


def error_of(terms: np.ndarray) -> float:
    return float(terms.std(ddof=1) / np.sqrt(len(terms)))


def test_what_the_logs_have_seen_of_it() -> None:
    rows = golden()
    assert rows.log_ratios == pytest.approx([0.4, -0.6, 0.3, -0.8, 0.4])
    assert rows.weights == pytest.approx([1.491825, 0.548812, 1.349859, 0.449329, 1.491825], abs=1e-5)
    seen = overlap(rows)
    assert seen.weight == near(1.066330)
    assert seen.effective == near(4.194991)
    assert seen.effective / 5 == near(0.838998)
    assert seen.largest == near(0.279806)
    assert seen.root == near(1.003156)
    assert -seen.kl == near(-0.06)
    assert seen.k3 == near(0.126330)
    # the lognormal value of the share that is effective
    assert np.exp(-rows.log_ratios.var(ddof=1)) == near(0.706099)


def test_gains_of_the_golden_log() -> None:
    rows = golden()
    assert (gain(rows).value, gain(rows).error) == (near(0.172977), near(0.008159))
    bare = Logged(rows.log_ratios, rows.rewards, np.zeros(5), rows.clusters)
    assert (gain(bare).value, gain(bare).error) == (near(0.266702), near(0.111923))
    assert (normalized_gain(rows).value, normalized_gain(rows).error) == (near(0.155996), near(0.067455))
    assert (sign_of_gain(rows, 1.2).value, sign_of_gain(rows, 1.2).error) == (near(0.125173), near(0.026665))
    assert (least_gain(rows, 1.2).value, least_gain(rows, 1.2).error) == (near(0.12), near(0.04899))
    assert 1 - np.minimum(rows.weights, 1.2).mean() == near(0.080372)


def test_labels_of_some_correct_guesses_of_all() -> None:
    """y = f + (L / e)(r - f) of guesses 0.8, 0.3, 0.7, 0.35, 0.75, every other one labelled, e = 0.5."""
    rows = golden()
    found = gain(Logged(rows.log_ratios, np.array([1.2, 0.3, 1.3, 0.35, 1.25]), VALUES, rows.clusters))
    assert (found.value, found.error) == (near(0.172614), near(0.067973))


def test_the_estimators_that_a_gate_must_not_use_are_known_by_their_numbers() -> None:
    """Recomputed here alone: nothing in the product offers them."""
    w, r, q, qc, qb = golden().weights, REWARDS, JUDGED, OF_CANDIDATE, OF_INCUMBENT
    capped = np.minimum(w, 1.2)
    assert ((w * r).mean(), error_of(w * r)) == (near(0.866702), near(0.354778))
    snips = float(w @ r / w.sum())
    assert (snips, error_of(w * (r - snips) / w.mean())) == (near(0.812790), near(0.155829))
    assert ((capped * r).mean(), capped @ r / capped.sum()) == (near(0.72), near(0.782925))
    tokens = [np.array(c) - np.array(b) for c, b in zip(CANDIDATE, INCUMBENT, strict=True)]
    assert np.mean([np.minimum(np.exp(d), 1).prod() * x for d, x in zip(tokens, r, strict=True)]) == near(0.544714)
    assert np.mean([np.exp(d.mean()) * x for d, x in zip(tokens, r, strict=True)]) == near(0.672629)
    assert qc.mean() == near(0.554)
    doubly = qc + w * (r - q)
    assert (doubly.mean(), error_of(doubly)) == (near(0.760269), near(0.189370))
    rest = float(w @ (r - q) / w.sum())
    assert (qc.mean() + rest, error_of(qc + w * (r - q) / w.mean())) == (near(0.747439), near(0.180764))
    slope = qc - w * q
    phi = -np.cov(w * r, slope)[0, 1] / slope.var(ddof=1)
    robust = w * r + phi * slope
    assert (phi, robust.mean(), error_of(robust)) == (near(2.084205), near(0.644875), near(0.049680))
    assert (qc + np.where(w > 1.2, 0, w) * (r - q)).mean() == near(0.503098)
    assert (qc + capped * (r - q)).mean() == near(0.719098)
    change = qc - qb + (w - 1) * (r - q)
    assert (change.mean(), error_of(change)) == (near(0.180269), near(0.013630))


def enumerated(seed: int, cap_mass: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two policies over six replies and a mean reward of each; the incumbent never says the last one."""
    rng = np.random.default_rng(seed)
    incumbent, candidate = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(6))
    incumbent[5] = 0
    candidate[5] = cap_mass
    return incumbent / incumbent.sum(), candidate / candidate.sum(), rng.random(6)


@pytest.mark.parametrize("seed", range(20))
def test_in_expectation_the_gain_is_right_for_any_baseline_and_the_bound_below_it(seed: int) -> None:
    for unseen in (0.0, 0.3):
        incumbent, candidate, rewards = enumerated(seed, unseen)
        w = np.divide(candidate, incumbent, out=np.zeros(6), where=incumbent > 0)
        true = float((candidate - incumbent) @ rewards)
        bound = incumbent @ ((np.minimum(w, 5) - 1) * rewards)
        assert bound <= true + 1e-12
        if not unseen:
            assert incumbent @ w == pytest.approx(1)
            for baseline in (0.0, 0.3, 2.0):
                assert incumbent @ ((w - 1) * (rewards - baseline)) == pytest.approx(true)


def simulated(count: int, drift: float, seed: int, noise: float = 0.0) -> Logged:
    """A candidate whose log-ratios are normal with the mean that makes E[w] = 1; noise in the scores adds to them."""
    rng = np.random.default_rng(seed)
    ratios = rng.normal(-drift, np.sqrt(2 * drift), count) + rng.normal(0, np.sqrt(noise), count)
    rewards = (rng.random(count) < 0.6).astype(float)
    return Logged(ratios, rewards, np.full(count, 0.6), [str(i) for i in range(count)])


def test_one_policy_against_itself_is_level_with_no_gain() -> None:
    rows = simulated(1000, 0.0, 0)
    assert overlap(rows).standing() is Standing.LEVEL
    assert gain(rows).low <= 0 <= gain(rows).high


@pytest.mark.parametrize(("drift", "expected"), [(0.025, Standing.LEVEL), (0.4, Standing.SIGN), (2.0, Standing.REFUSE)])
def test_the_standing_falls_as_the_candidate_moves_away(drift: float, expected: Standing) -> None:
    """The shares of the specification's own simulation at 1,000 rows: 1.00 level, 0.65 sign, all refused."""
    found = [overlap(simulated(1000, drift, seed)).standing() for seed in range(20)]
    assert found.count(expected) >= 9
    assert drift < 1 or found.count(Standing.REFUSE) == 20


def test_harm_that_the_log_never_saw_is_refused_by_the_mean_weight() -> None:
    """A tenth of the candidate's mass went to replies that are not in the log: the mean weight is 0.9."""
    rows = simulated(4000, 0.02, 1)
    hidden = Logged(rows.log_ratios + np.log(0.9), rows.rewards, rows.values, rows.clusters)
    assert overlap(rows).standing() is Standing.LEVEL
    assert overlap(hidden).effective / 4000 > 0.9
    assert overlap(hidden).standing() is Standing.REFUSE


def test_few_rows_are_refused_however_close_the_policies_are() -> None:
    assert overlap(simulated(150, 0.01, 2)).standing() is Standing.REFUSE


def test_a_user_who_comes_twice_is_no_second_witness() -> None:
    rows = golden()
    ratios, rewards, values = (np.tile(part, 2) for part in (rows.log_ratios, rows.rewards, rows.values))
    twice = Logged(ratios, rewards, values, [*"abcdeabcde"])
    assert gain(twice).value == pytest.approx(gain(rows).value)
    # the same five clusters, each with the sum of two equal terms over twice the rows: the same error
    assert gain(twice).error == pytest.approx(gain(rows).error)
    apart = Logged(twice.log_ratios, twice.rewards, twice.values, [str(i) for i in range(10)])
    assert gain(apart).error < 0.8 * gain(rows).error


def test_one_user_has_no_error() -> None:
    rows = golden()
    with pytest.raises(TooLittleDataError):
        gain(Logged(rows.log_ratios, rows.rewards, rows.values, ["a"] * 5))


def test_a_standing_needs_all_of_its_conditions() -> None:
    good = {"kl": 0.1, "k3": 0.1, "root": 0.97, "effective": 500.0, "largest": 0.01}
    assert Overlap(**good, weight=1.0, error=0.01, lost=0.0).standing() is Standing.LEVEL
    assert Overlap(**good, weight=1.0, error=0.01, lost=0.05).standing() is Standing.SIGN
    assert Overlap(**good, weight=1.0, error=0.01, lost=0.07).standing() is Standing.REFUSE
    assert Overlap(**good, weight=0.96, error=0.01, lost=0.0).standing() is Standing.REFUSE
    assert Overlap(**{**good, "kl": 0.3}, weight=1.0, error=0.01, lost=0.0).standing() is Standing.SIGN
    assert Overlap(**{**good, "root": 0.9}, weight=1.0, error=0.01, lost=0.0).standing() is Standing.SIGN
    assert Overlap(**{**good, "largest": 0.04}, weight=1.0, error=0.01, lost=0.0).standing() is Standing.SIGN
