from __future__ import annotations

import numpy as np
import pytest
from rollouts import priced, rollout, slopes

from nightschool.errors import RefusedError
from nightschool.objectives.spo import SPO, SPO_PLUS, Measure, SpoRule
from nightschool.valuation.tracker import BetaTracker

RAW, LENGTHS = np.array([0.6, -0.4, 0.3, -0.7]), np.array([2, 10, 2, 2])
REWARDS = (1.0, 0.0, 1.0, 0.0)


def rows() -> list:
    """Advantages as golden G6b has them: r - v with v = 0.4, 0.4, 0.7, 0.7."""
    return [
        rollout(reward, int(length), p_hat=reward - raw)
        for reward, length, raw in zip(REWARDS, LENGTHS, RAW, strict=True)
    ]


def advantages(objective) -> np.ndarray:
    return np.array([s.annotations["advantage"] for s in objective.annotate(rows(), objective.rule())])


def test_whitening_of_golden_g6b() -> None:
    expected = (RAW - RAW.mean()) / RAW.std(ddof=1)
    found = advantages(SPO)
    assert found.tolist() == pytest.approx([1.078352, -0.580651, 0.580651, -1.078352], abs=1e-5)
    assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-9)
    assert (found @ LENGTHS) / LENGTHS.sum() == pytest.approx(-0.290326, abs=1e-5)  # what a token mean consumes


def test_the_token_measure_of_golden_g6b() -> None:
    mean = (RAW @ LENGTHS) / LENGTHS.sum()
    deviation = np.sqrt((LENGTHS @ (RAW - mean) ** 2) / LENGTHS.sum())
    assert (mean, deviation) == (pytest.approx(-0.225), pytest.approx(0.408503, abs=1e-6))
    found = advantages(SPO_PLUS)
    assert found.tolist() == pytest.approx([2.019567, -0.428393, 1.285179, -1.162781], abs=1e-5)
    assert (found @ LENGTHS) / LENGTHS.sum() == pytest.approx(0.0, abs=1e-12)
    assert SPO_PLUS.rule().measure == Measure.TOKEN


def test_the_advantage_of_golden_g6b_uses_the_value_before_its_own_outcome() -> None:
    tracker = BetaTracker.offline(3, 8)
    assert 1.0 - tracker.value == pytest.approx(0.611111, abs=1e-6)
    assert 1.0 - tracker.updated(1.0, 0.03).value < 1.0 - tracker.value


def test_at_the_anchor_the_gradient_is_the_whitened_advantage() -> None:
    """Ratios are 1: each token's gradient is -A over all 16 tokens, and sums to zero under the token measure."""
    at = [[-1.0] * int(length) for length in LENGTHS]
    _, logprobs = priced(SPO_PLUS, SPO_PLUS.rule(), rows(), at, at)
    expected = np.repeat(-advantages(SPO_PLUS) / 16, LENGTHS)
    assert slopes(logprobs) == pytest.approx(expected.tolist(), abs=1e-6)
    assert sum(slopes(logprobs)) == pytest.approx(0.0, abs=1e-6)


def test_a_missing_value_and_a_buffer_without_spread_are_refused() -> None:
    with pytest.raises(RefusedError, match="no p_hat"):
        SPO.annotate([rollout(1.0)], SpoRule())
    for alike in ([rollout(1.0, p_hat=0.5)], [rollout(1.0, p_hat=0.5)] * 3):
        for objective in (SPO, SPO_PLUS):
            with pytest.raises(RefusedError, match="needs a spread"):
                objective.annotate(alike, objective.rule())
    with pytest.raises(RefusedError, match="calibrated probability"):
        SPO.annotate([rollout(0.5, p_hat=0.5), rollout(1.0, p_hat=0.5)], SpoRule())
