from __future__ import annotations

import math

import pytest

from nightschool.training.drift import Drift, DriftRule, choose_watched, measure
from nightschool.types import Sample


def row(anchor: list[float], reward: float | None = None, advantage: float = 0.0, beta: float = 0.25) -> Sample:
    length = len(anchor) + 1
    mask = (False, *[True] * len(anchor))
    notes = {} if reward is None else {"advantage": advantage, "beta": beta}
    return Sample(
        f"{reward}-{anchor}", tuple(range(length)), mask, mask, reward=reward,
        reference_logprobs=(None, *anchor), annotations=notes,
    )  # fmt: skip


def test_nothing_moved() -> None:
    found = measure([row([-1.0, -2.0]), row([-0.5], reward=1.0, advantage=0.5)], [(None, -1.0, -2.0), (None, -0.5)])
    assert found.kl == 0.0
    assert found.kappa == pytest.approx(2.0)  # A / beta = 0.5 / 0.25 at log-ratio 0
    assert found.good == 0.0
    assert found.bad is None


def test_kl_sums_token_terms_and_averages_sequences() -> None:
    # differences 0.2 and -0.1: e^0.2 - 1.2 = 0.021403, e^-0.1 - 0.9 = 0.004837 (golden G5); second row nothing
    found = measure([row([-1.0, -2.0]), row([-0.5])], [(None, -0.8, -2.1), (None, -0.5)])
    assert found.kl == pytest.approx((0.021403 + 0.004837) / 2, abs=1e-6)


def test_kappa_and_log_ratios_by_rating() -> None:
    samples = [
        row([-1.0], reward=1.0, advantage=0.6),
        row([-1.0], reward=1.0, advantage=0.6),
        row([-1.0], reward=0.0, advantage=-0.4),
        row([-1.0]),
    ]
    found = measure(samples, [(None, -0.5), (None, -0.9), (None, -3.0), (None, -1.0)])
    # LR 0.5, 0.1, -2: kappa / beta = mean(A / beta - LR) = (2.4 - 0.5 + 2.4 - 0.1 - 1.6 + 2) / 3
    assert found.kappa == pytest.approx(4.6 / 3)
    assert found.good == pytest.approx(0.3)
    assert found.bad == pytest.approx(-2.0)
    assert found.good_error == pytest.approx(0.2)  # spread 0.2 * sqrt(2), two rows
    assert found.num_labelled == 3
    assert set(found.metrics()) == {"kl", "kappa", "held_out_good", "held_out_bad"}


def drift(kl: float = 0.1, kappa: float = 1.0, good: float = 0.5, labelled: int = 20) -> Drift:
    return Drift(kl, kappa, good, -1.0, 0.1, labelled)


def test_the_budget_holds_from_the_first_step() -> None:
    rule = DriftRule()
    assert rule.reason_to_stop(drift(kl=0.49), 1, 30) is None
    assert "exceeds 0.5" in str(rule.reason_to_stop(drift(kl=0.51), 1, 30))
    assert "exceeds" in str(rule.reason_to_stop(drift(kl=math.nan), 1, 30))
    assert rule.is_safe(drift(kl=0.24))
    assert not rule.is_safe(drift(kl=0.26))


def test_pessimism_and_successes_are_read_from_a_third_on() -> None:
    rule = DriftRule()
    spent, leaking = drift(kappa=-0.01), drift(good=-0.2)
    assert rule.reason_to_stop(spent, 9, 30) is None
    assert "pessimism" in str(rule.reason_to_stop(spent, 10, 30))
    assert "good replies" in str(rule.reason_to_stop(leaking, 10, 30))
    assert rule.reason_to_stop(drift(good=-0.05), 10, 30) is None  # within one standard error
    assert rule.reason_to_stop(drift(kappa=-1.0, labelled=7), 10, 30) is None  # too few rows to say


def test_watched_rows_are_drawn_whatever_their_rating() -> None:
    # 60 rows, every fourth rated: a draw of 48 holds 12 rated ones on average, and 8 to 15 whatever the draw's luck
    # (hypergeometric, at least 12 unrated are left out or 12 rated; 7 or fewer rated has probability 0.001)
    rows = [row([-1.0 - i], reward=float(i % 8 == 0) if i % 4 == 0 else None) for i in range(60)]
    watched = choose_watched(rows)
    assert len({sample.id for sample in watched}) == 48
    assert 8 <= sum(sample.reward is not None for sample in watched) <= 15
    assert choose_watched(rows[::-1]) == watched
    assert choose_watched(rows[:5]) == choose_watched(choose_watched(rows[:5]))
    assert choose_watched([]) == []
