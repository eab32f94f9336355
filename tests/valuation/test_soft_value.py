from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from nightschool.valuation.soft_value import closed_form, linex, log_mean_exp, share_of


def test_linex_is_least_at_the_value() -> None:
    # 5.4: outcomes 1 with 0.25, 0 with 0.75 at beta 1: ln(1 + 0.25 (e - 1)) = 0.357374
    found = minimize_scalar(lambda v: 0.25 * linex(1, v, 1.0) + 0.75 * linex(0, v, 1.0), bounds=(-1, 2))
    assert found.x == pytest.approx(0.35737, abs=1e-5)
    assert linex(1, 0.5, 1.0) == pytest.approx(0.148721, abs=1e-6)
    assert linex(0, 0.5, 1.0) == pytest.approx(0.106531, abs=1e-6)


def test_a_weighted_group() -> None:
    # (2 e + 2.5) / 4.5 = 1.763681, its logarithm 0.567403
    assert log_mean_exp([1, 0, 0, 0], 1.0, [2, 1, 1, 0.5]) == pytest.approx(0.567403, abs=1e-6)
    assert log_mean_exp([1, 0, 0, 0], 1.0, [3.0] * 4) == pytest.approx(0.357374, abs=1e-6)


def test_the_temperature_goes_from_the_mean_to_the_best() -> None:
    assert log_mean_exp([1, 0, 0, 0], 1e4) == pytest.approx(0.25, abs=1e-4)
    assert log_mean_exp([1, 0, 0, 0], 1e-3) == pytest.approx(1 + 1e-3 * math.log(0.25))


@pytest.mark.parametrize(("size", "expected"), [(1, 0.2500), (2, 0.2950), (4, 0.3243), (8, 0.3405), (64, 0.3553)])
def test_a_finite_group_underestimates(size: int, expected: float) -> None:
    # 5.1: E[V_hat] over k of G successes at p = 0.25, beta = 1; true 0.3574
    chances = [math.comb(size, k) * 0.25**k * 0.75 ** (size - k) for k in range(size + 1)]
    values = [log_mean_exp([1.0] * k + [0.0] * (size - k), 1.0) for k in range(size + 1)]
    mean = float(np.dot(chances, values))
    assert mean == pytest.approx(expected, abs=5e-5)
    assert mean < closed_form(0.25, 1.0)


def test_leaving_itself_out_is_noisier_than_the_group() -> None:
    # 5.2: of [1, 0, 0, 0] at beta 1 the others' value is 0 for the success, log((e + 2) / 3) = 0.452832 for a failure
    rewards = [1.0, 0.0, 0.0, 0.0]
    found = [r - log_mean_exp(rewards[:place] + rewards[place + 1 :], 1.0) for place, r in enumerate(rewards)]
    assert found == pytest.approx([1.0, *[-0.452832] * 3], abs=1e-6)


def test_shares_and_values_are_inverse() -> None:
    for bounds in ((0.0, 1.0), (-1.0, 0.5)):
        for reward in np.linspace(*bounds, 7).tolist():
            assert closed_form(share_of(reward, 2.0, bounds), 2.0, bounds) == pytest.approx(reward, abs=1e-12)


def test_the_expected_share_has_the_value_as_its_closed_form() -> None:
    rewards = np.random.default_rng(0).uniform(-1, 2, 50)
    mean = float(np.mean([share_of(r, 3.0, (-1.0, 2.0)) for r in rewards.tolist()]))
    assert closed_form(mean, 3.0, (-1.0, 2.0)) == pytest.approx(log_mean_exp(rewards.tolist(), 3.0), abs=1e-12)
