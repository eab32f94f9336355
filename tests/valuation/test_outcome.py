"""The outcome model: what was said decides, for what was asked."""

from __future__ import annotations

import numpy as np
import pytest

from nightschool.errors import TooLittleDataError
from nightschool.valuation.outcome import Said, features_of_exchange, fit_outcome_model


def exchanges(count: int, seed: int = 0) -> tuple[list[Said], list[float], list[str]]:
    """Two wishes and two acts; an act is right for its own wish alone, and 5 % of the judgements are wrong."""
    rng = np.random.default_rng(seed)
    said, rewards, names = [], [], []
    for number in range(count):
        wish, act = int(rng.integers(2)), int(rng.integers(2))
        request = ("please cancel my order", "where is my parcel")[wish] + f" {rng.integers(100)}"
        said.append(Said(request, (7, 40 + act, int(rng.integers(200, 260)), 9)))
        rewards.append(float((wish == act) != (rng.random() < 0.05)))
        names.append(f"user {number}")
    return said, rewards, names


def test_a_reply_is_right_for_what_was_asked() -> None:
    said, rewards, names = exchanges(300)
    model = fit_outcome_model(said, rewards, [1.0] * 300, names)
    right = model.predict([Said("please cancel my order", (7, 40, 9)), Said("where is my parcel", (7, 41, 9))])
    wrong = model.predict([Said("please cancel my order", (7, 41, 9)), Said("where is my parcel", (7, 40, 9))])
    assert right.min() > 0.8
    assert wrong.max() < 0.2
    # neither the wish nor the act alone says anything: the model beats the mean by far
    assert model.report["brier"] < 0.5 * model.report["brier_of_mean"]


def test_pairs_are_bounded_however_long_both_are() -> None:
    said = Said(" ".join(f"word{'abcdefghij'[i % 10]}{i}" for i in range(500)), tuple(range(5000)))
    assert sum("*" in feature and not feature.startswith("*") for feature in features_of_exchange(said)) == 256


def test_it_asks_for_what_any_value_model_asks_for() -> None:
    said, rewards, names = exchanges(20)
    with pytest.raises(TooLittleDataError):
        fit_outcome_model(said, rewards, [1.0] * 20, names)
