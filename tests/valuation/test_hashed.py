from __future__ import annotations

import numpy as np
import pytest
from scipy import linalg

from nightschool.errors import RefusedError, TooLittleDataError
from nightschool.valuation.hashed import RIDGE, WIDTH, fit_learned_value, hashed
from nightschool.valuation.words import CONSTANT


def traffic(count: int, seed: int = 0):
    """Refunds are worth 0.2 on average, parcels 0.8, in steps of a quarter."""
    rng = np.random.default_rng(seed)
    refund = rng.random(count) < 0.5
    texts = [f"please refund order {i}" if bad else f"where is parcel {i}" for i, bad in enumerate(refund)]
    rewards = rng.binomial(4, np.where(refund, 0.2, 0.8)) / 4
    return texts, rewards.tolist(), [f"u{i % 37}" for i in range(count)], np.where(refund, 0.2, 0.8)


def fitted(texts, rewards, principals, slices=()):
    ones = [1.0] * len(texts)
    return fit_learned_value(texts, rewards, ones, [0.0] * len(texts), principals, slices)


def test_words_land_in_the_same_buckets_every_time() -> None:
    x = hashed(["refund 17", "refund 99", "", "refund 17"])
    assert x.shape == (4, WIDTH + 1)
    assert np.array_equal(x[0], x[3])
    assert np.array_equal(x[0], x[1])  # numbers are folded
    assert np.linalg.norm(x[0, :WIDTH]) == pytest.approx(1.0)
    assert (x[2, :WIDTH] == 0).all()
    assert (x[:, WIDTH] == CONSTANT).all()


def test_estimates_follow_the_request() -> None:
    texts, rewards, principals, rates = traffic(300)
    model = fitted(texts, rewards, principals)
    assert np.abs(model.p_hat - rates).mean() < 0.06
    assert (model.p_lo < model.p_hat).all()
    assert model.report["brier"] < 0.5 * model.report["brier_of_mean"]
    p_hat, p_lo = model.predict(["please refund order 1", "where is parcel 2", "sing me a song"])
    assert p_hat[0] < 0.3 < p_hat[2] < 0.7 < p_hat[1]
    assert p_hat[2] - p_lo[2] > 2 * (p_hat[0] - p_lo[0])  # of words it never saw it is less sure


def test_leaving_a_principal_out_is_a_fit_without_it() -> None:
    """The closed form against the fit itself, weights and spread included."""
    texts, rewards, principals, _ = traffic(120)
    weights = np.linspace(0.3, 1.0, 120)
    model = fit_learned_value(texts, rewards, weights.tolist(), [0.0] * 120, principals)
    mine = np.array([owner == "u3" for owner in principals])
    x, y = hashed(texts), np.asarray(rewards)
    rest, w = x[~mine], weights[~mine]
    inverse = linalg.inv((rest.T * w) @ rest + RIDGE * np.eye(WIDTH + 1))
    means = x[mine] @ inverse @ (rest.T @ (w * y[~mine]))
    assert mine.sum() > 2
    assert model.p_hat[mine] == pytest.approx(np.clip(means, 0, 1).tolist(), abs=1e-9)
    spreads = np.sqrt(model.noise * np.einsum("nd,de,ne->n", x[mine], inverse, x[mine]))
    assert model.p_lo[mine] == pytest.approx(np.clip(means - 1.2815515655 * spreads, 0, 1).tolist(), abs=1e-9)


def test_a_part_that_is_surely_off_and_too_few_rows_are_refused() -> None:
    texts, rewards, principals, _ = traffic(300)
    with pytest.raises(RefusedError, match="learned value is not calibrated"):
        fitted(["same words"] * 300, rewards, principals, ["high" if r > 0.5 else "low" for r in rewards])
    with pytest.raises(TooLittleDataError):
        fitted(texts[:20], rewards[:20], principals[:20])
