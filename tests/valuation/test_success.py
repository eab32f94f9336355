from __future__ import annotations

import numpy as np
import pytest

from nightschool.errors import TooLittleDataError
from nightschool.valuation.success import fit_success_model


def traffic(count: int, seed: int = 0) -> tuple[list[str], list[float], list[str], np.ndarray]:
    """Refunds succeed in 20 % of cases, parcels in 80 %."""
    rng = np.random.default_rng(seed)
    rates = np.where(rng.random(count) < 0.5, 0.2, 0.8)
    texts = [
        f"please refund order {rng.integers(1000, 9999)}" if rate == 0.2 else f"where is parcel {rng.integers(1000)}"
        for rate in rates
    ]
    return texts, (rng.random(count) < rates).astype(float).tolist(), [f"u{i}" for i in range(count)], rates


def test_estimates_follow_the_request_and_stay_below_themselves() -> None:
    texts, rewards, principals, rates = traffic(200)
    model = fit_success_model(texts, rewards, [1.0] * 200, [0.0] * 200, principals)
    assert np.abs(model.p_hat - rates).mean() < 0.1
    assert (model.p_lo < model.p_hat).all()
    assert (model.p_lo < rates).mean() > 0.8
    assert model.report["brier"] < model.report["brier_of_mean"] - 0.03
    p_hat, p_lo = model.predict(["please refund order 1", "where is parcel 2"])
    assert p_hat[0] < 0.4 < 0.6 < p_hat[1]
    assert (p_lo < p_hat).all()


def test_fewer_rows_mean_a_wider_margin() -> None:
    widths = []
    for count in (50, 400):
        texts, rewards, principals, _ = traffic(count)
        model = fit_success_model(texts, rewards, [1.0] * count, [0.0] * count, principals)
        widths.append((model.p_hat - model.p_lo).mean())
    assert widths[0] > 1.5 * widths[1]


def test_what_older_versions_achieved_fades() -> None:
    # 100 old failures and 100 fresh successes, 20 fresh failures; six half-lives leave 100 / 64 of the old
    texts = ["same words"] * 220
    rewards = [0.0] * 100 + [1.0] * 100 + [0.0] * 20
    principals = [f"u{i}" for i in range(220)]
    even = fit_success_model(texts, rewards, [1.0] * 220, [0.0] * 220, principals)
    faded = fit_success_model(texts, rewards, [1.0] * 220, [6.0] * 100 + [0.0] * 120, principals)
    assert even.predict(["same words"])[0][0] == pytest.approx(100 / 220, abs=0.03)
    assert faded.predict(["same words"])[0][0] == pytest.approx(100 / (100 + 20 + 100 / 64), abs=0.04)


@pytest.mark.parametrize(
    ("rewards", "says"),
    [
        ([1.0] * 20 + [0.0] * 19, "39 sessions carry feedback; 40 would do"),
        ([1.0] * 60 + [0.0] * 7, "7 sessions were rated bad; 8 would do"),
        ([1.0] * 50, "All 50 judgements are equal"),
        ([], "0 sessions carry feedback; 40 would do"),
    ],
)
def test_too_little_says_how_much_would_do(rewards: list[float], says: str) -> None:
    n = len(rewards)
    with pytest.raises(TooLittleDataError, match=says):
        fit_success_model(["words"] * n, rewards, [1.0] * n, [0.0] * n, [f"u{i}" for i in range(n)])


def test_one_loud_user_is_not_a_crowd() -> None:
    texts, rewards, _, _ = traffic(60)
    with pytest.raises(TooLittleDataError, match="2 users"):
        fit_success_model(texts, rewards, [1.0] * 60, [0.0] * 60, ["a", "b"] * 30)
