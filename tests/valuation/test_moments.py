from __future__ import annotations

import numpy as np
import pytest

from nightschool.errors import InputError, RefusedError, TooLittleDataError
from nightschool.valuation.moments import Scale, fit_moment_model
from nightschool.valuation.soft_value import log_mean_exp


def graded(count: int, seed: int = 0) -> tuple[list[str], list[float], list[str]]:
    """Proofs earn 0, 1/2 or 1 with chances 0.6, 0.2, 0.2; sums with 0.1, 0.2, 0.7."""
    rng = np.random.default_rng(seed)
    texts, rewards = [], []
    for number in range(count):
        kind, chances = ("proof", [0.6, 0.2, 0.2]) if number % 2 else ("sum", [0.1, 0.2, 0.7])
        texts.append(f"a {kind} please, number {rng.integers(1000)}")
        rewards.append(float(rng.choice([0.0, 0.5, 1.0], p=chances)))
    return texts, rewards, [f"u{i}" for i in range(count)]


def test_values_are_exponential_moments() -> None:
    texts, rewards, principals = graded(600)
    model = fit_moment_model(texts, rewards, [1.0] * 600, principals, Scale())
    value, low = model.predict(["a proof please, number 7", "a sum please, number 7"])
    # beta 1: ln(0.6 + 0.2 e^0.5 + 0.2 e) = 0.386; ln(0.1 + 0.2 e^0.5 + 0.7 e) = 0.846
    assert value == pytest.approx([0.386, 0.846], abs=0.05)
    for kind, got in (("proof", value[0]), ("sum", value[1])):
        own = [r for text, r in zip(texts, rewards, strict=True) if kind in text]
        assert got == pytest.approx(log_mean_exp(own, 1.0), abs=0.02)
    assert (low < value).all()
    assert (model.value_lo < model.value).all()
    assert model.report["linex"] < model.report["linex_of_mean"]
    assert model.report["calibration_error"] < 0.06


def test_rewards_of_another_scale_move_with_it() -> None:
    texts, rewards, principals = graded(200)
    plain = fit_moment_model(texts, rewards, [1.0] * 200, principals, Scale(1.0))
    scaled = fit_moment_model(texts, [4 * r - 1 for r in rewards], [1.0] * 200, principals, Scale(4.0, -1.0, 3.0))
    assert scaled.value == pytest.approx((4 * plain.value - 1).tolist(), abs=1e-6)


def test_what_the_best_few_would_decide_is_refused() -> None:
    texts, rewards, principals = graded(100)
    with pytest.raises(RefusedError, match="beta spans the rewards"):
        fit_moment_model(texts, rewards, [1.0] * 100, principals, Scale(0.5))
    with pytest.raises(InputError, match="outside its bounds"):
        fit_moment_model(texts, [2.0, *rewards[1:]], [1.0] * 100, principals, Scale())
    with pytest.raises(TooLittleDataError):
        fit_moment_model(texts[:30], rewards[:30], [1.0] * 30, principals[:30], Scale())


def test_no_reward_informs_its_own_principals_value() -> None:
    texts, rewards, principals = graded(120)
    first = fit_moment_model(texts, rewards, [1.0] * 120, principals, Scale())
    flipped = fit_moment_model(texts, [1 - rewards[0], *rewards[1:]], [1.0] * 120, principals, Scale())
    # the map from scores to shares is one for all, of two numbers; the score itself is the others'
    assert first.value[0] == pytest.approx(flipped.value[0], abs=0.02)
