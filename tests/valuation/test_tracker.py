from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from nightschool.errors import RefusedError, TooLittleDataError
from nightschool.valuation.tracker import BetaTracker, Counts, fit_tracker, follow, rates


def test_golden_g6b() -> None:
    # 3 of 8: a = 8 * 3.5 / 9, b = 8 * 5.5 / 9; r = 1 with drift 0.03: 2^-0.5 = 0.707 is clipped to 0.875
    before = BetaTracker.offline(3, 8)
    assert (before.a, before.b) == (pytest.approx(3.111111, abs=1e-6), pytest.approx(4.888889, abs=1e-6))
    assert before.value == pytest.approx(0.388889, abs=1e-6)
    assert 1.0 - before.value == pytest.approx(0.611111, abs=1e-6)
    kept = 2 ** (-0.03 / 0.06)
    assert kept == pytest.approx(0.707107, abs=1e-6)
    after = before.updated(1.0, 0.03)
    assert (after.a, after.b) == (pytest.approx(3.722222, abs=1e-6), pytest.approx(4.277778, abs=1e-6))
    assert after.value == pytest.approx(0.465278, abs=1e-6)


def test_forgetting_lies_between_its_limits() -> None:
    # no drift keeps 0.96; 0.0058 nats keep 2^-0.0967 = 0.935; much drift keeps 0.875
    kept = [BetaTracker(1.0, 0.0).updated(0.0, drift).a for drift in (0.0, 0.0058, 9.0)]
    assert kept == pytest.approx([0.96, 2 ** (-0.0058 / 0.06), 0.875])


def test_a_coins_toss_is_the_most_interesting_prompt() -> None:
    assert BetaTracker().value == 0.5
    assert BetaTracker().interest == pytest.approx(0.55)
    assert BetaTracker(1.0, 1e9).interest == pytest.approx(0.05, abs=1e-3)


def test_evidence_is_ordered_by_its_version_and_seen_after_its_own_value() -> None:
    # version 1 fails, version 2 succeeds, told the other way round
    values, after = follow(BetaTracker(), [(2, 1.0, 0.0), (1, 0.0, 0.0)])
    first = BetaTracker().updated(0.0, 0.0)
    assert values == [first.value, 0.5]
    assert after == first.updated(1.0, 0.0)


def test_shrinkage_of_5_3() -> None:
    # a0 = 2, b0 = 3 and 3 of 4: (2 + 3) / (5 + 4)
    ((mean, low),) = rates(np.array([2.0 + 3]), np.array([3.0 + 1]))
    assert mean == pytest.approx(0.555556, abs=1e-6)
    assert low == pytest.approx(stats.beta.ppf(0.1, 5, 4))


def drawn(clusters: int, count: int, concentration: float | None, seed: int = 0):
    """Rates from Beta(2c/5, 3c/5), or all 0.4; rows of each cluster, every row another principal."""
    rng = np.random.default_rng(seed)
    c = concentration or 1.0
    rates = np.full(clusters, 0.4) if concentration is None else rng.beta(0.4 * c, 0.6 * c, clusters)
    numbers = np.repeat(np.arange(clusters), count)
    rewards = (rng.random(len(numbers)) < rates[numbers]).astype(float)
    return numbers, rewards, rates


def test_the_prior_is_as_strong_as_the_spread_allows() -> None:
    for concentration in (4.0, 20.0):
        numbers, rewards, _ = drawn(400, 30, concentration)
        a, b = Counts.of(numbers, rewards, np.ones(len(numbers)), 400).prior()
        assert a + b == pytest.approx(concentration, rel=0.25)
        assert a / (a + b) == pytest.approx(0.4, abs=0.03)
    numbers, rewards, _ = drawn(200, 30, None)
    assert sum(Counts.of(numbers, rewards, np.ones(len(numbers)), 200).prior()) > 100  # all clusters are one


def fitted(numbers, rewards, ages=None, principals=None):
    count = len(rewards)
    owners = [f"u{i}" for i in range(count)] if principals is None else principals
    return fit_tracker([f"c{n}" for n in numbers], list(rewards), [1.0] * count, ages or [0.0] * count, owners)


def test_shrunk_rates_beat_raw_ones_and_one_for_all() -> None:
    numbers, rewards, true = drawn(60, 6, 5.0)
    model = fitted(numbers, rewards)
    found = model.predict([f"c{n}" for n in range(60)])[0]
    raw = np.bincount(numbers, rewards) / 6
    error = np.square(found - true).mean()
    assert error < 0.8 * np.square(raw - true).mean()
    assert error < 0.8 * np.square(rewards.mean() - true).mean()
    assert model.report["brier"] < model.report["brier_of_mean"]
    assert (model.p_lo < model.p_hat).all()
    unseen = model.predict(["never"])
    assert unseen[0][0] == pytest.approx(model.prior[0] / sum(model.prior))
    assert unseen[1][0] < min(0.25, unseen[0][0])  # nothing is known of it but the spread of the others


def test_a_row_never_informs_its_own_estimate() -> None:
    """Exactly: the estimates of a principal's rows are those of a log in which all of them turned out otherwise."""
    numbers, rewards, _ = drawn(8, 20, 5.0)
    principals = [f"u{place % 23}" for place in range(len(rewards))]
    mine = np.array([owner == "u5" for owner in principals])
    first = fitted(numbers, rewards, principals=principals)
    flipped = fitted(numbers, np.where(mine, 1 - rewards, rewards), principals=principals)
    assert first.p_hat[mine] == pytest.approx(flipped.p_hat[mine], abs=1e-12)
    assert first.p_lo[mine] == pytest.approx(flipped.p_lo[mine], abs=1e-12)
    assert not np.allclose(first.p_hat[~mine], flipped.p_hat[~mine])


def test_older_rows_count_by_their_half_life() -> None:
    # cluster 0: 32 failures three half-lives old count as 4, 16 fresh successes as 16
    numbers = [0] * 48 + [1] * 40
    rewards = np.array([0.0] * 32 + [1.0] * 16 + [1.0, 0.0] * 20)
    model = fitted(numbers, rewards, [3.0] * 32 + [0.0] * 56)
    a, b = model.prior
    assert model.predict(["c0"])[0][0] == pytest.approx((a + 16) / (a + b + 20))


def test_a_log_that_has_faded_away_knows_nothing() -> None:
    numbers, rewards, _ = drawn(8, 20, 5.0)
    prior = Counts.of(numbers, rewards, np.full(len(rewards), 1e-150), 8).prior()
    assert prior == pytest.approx((0.5, 0.5))
    ((_, low),) = rates(*(np.array([part]) for part in prior))
    assert low == pytest.approx(np.sin(np.pi / 20) ** 2)  # the arcsine law: 0.0245
    with pytest.raises(RefusedError, match=r"0\.50 and 0\.3"):  # and is not taken for knowledge
        fitted(numbers, rewards, [500.0] * len(rewards))


def test_clusters_that_are_not_what_they_were_are_refused() -> None:
    """Ages say that the log is one; it is two: old rows of a version that failed, told as if they were fresh."""
    rewards = np.array([0.0] * 150 + [1.0] * 150)
    slices = ["v1"] * 150 + ["v2"] * 150
    with pytest.raises(RefusedError, match="slice v1 it says"):
        fit_tracker(["c"] * 300, rewards.tolist(), [1.0] * 300, [0.0] * 300, [f"u{i}" for i in range(300)], slices)
    with pytest.raises(TooLittleDataError, match="39 sessions"):
        fitted([0] * 39, np.arange(39) % 2)
