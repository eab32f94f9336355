"""Raters told apart by their votes alone."""

from __future__ import annotations

import numpy as np
import pytest

from nightschool.errors import TooLittleDataError
from nightschool.valuation.raters import Raters, Vote, fit_raters


def crowd(careless: int, careful: int, each: int, seed: int = 0, always: bool = False) -> list[Vote]:
    """Votes of raters with 5 % of mistakes, and of some who tick at random (or always yes), beside a model that knows
    nine items of ten and says how many of such a crowd would say yes."""
    rng = np.random.default_rng(seed)
    share, yes = careless / (careless + careful), 1.0 if always else 0.5
    of_good, of_bad = (share * yes + (1 - share) * right for right in (0.95, 0.05))
    votes = []
    for number in range(careless + careful):
        for one in range(each):
            good = bool(rng.random() < 0.6)
            p = 0.9 if good == (rng.random() < 0.9) else 0.1  # of being good
            vote = rng.random() < yes if number < careless else good != (rng.random() < 0.05)
            name = f"{'random' if number < careless else 'careful'} {number}"
            votes.append(Vote(f"{number} {one}", name, bool(vote), p * of_good + (1 - p) * of_bad))
    return votes


def means(found: Raters) -> tuple[float, float]:
    kinds = [[a for name, a in found.accuracy.items() if name.startswith(kind)] for kind in ("random", "careful")]
    return float(np.mean(kinds[0])), float(np.mean(kinds[1]))


@pytest.mark.parametrize("always", [False, True])
def test_those_who_tick_at_random_are_found(always: bool) -> None:
    # A vote that agrees with the model weighs log(0.86 / 0.5) for care, another one log(0.14 / 0.5): half and half of
    # 16 come to -5.8 with a deviation of 3.6, so one careless rater in twenty passes for careful
    found = fit_raters(crowd(12, 18, 16, always=always))
    careless, careful = means(found)
    assert careless < 0.62
    assert careful > 0.85
    assert found.report["careless"] == pytest.approx(0.4, abs=0.15)


def test_where_all_are_alike_nobody_is_told_apart() -> None:
    with pytest.raises(TooLittleDataError, match="look alike"):
        fit_raters(crowd(0, 30, 8))


def test_votes_of_others_on_an_item_tell_as_well() -> None:
    """No model (priors of one half): each of 60 items is judged by five of 15 raters, 5 of whom tick at random."""
    rng = np.random.default_rng(1)
    votes = []
    for item in range(60):
        good = bool(rng.random() < 0.5)
        for rater in rng.choice(15, 5, replace=False).tolist():
            told = bool(rng.random() < 0.5) if rater < 5 else good != (rng.random() < 0.05)
            votes.append(Vote(str(item), f"{'random' if rater < 5 else 'careful'} {rater}", bool(told), 0.5))
    careless, careful = means(fit_raters(votes))
    assert careless < 0.65
    assert careful > 0.85


def test_a_model_that_knows_nothing_tells_nobody_apart() -> None:
    votes = [Vote(v.item, v.rater, v.good, 0.56) for v in crowd(12, 18, 8)]
    with pytest.raises(TooLittleDataError, match="look alike"):
        fit_raters(votes)


def test_somebody_new_is_believed_as_the_crowd_is() -> None:
    found = fit_raters(crowd(12, 18, 16))
    careless, careful = means(found)
    assert careless < found.of("nobody") < careful
    assert found.of(None) == found.unknown


def test_too_few_votes_tell_nothing() -> None:
    with pytest.raises(TooLittleDataError, match="not told apart"):
        fit_raters([])
    with pytest.raises(TooLittleDataError) as refused:
        fit_raters(crowd(0, 50, 1))
    assert "0 raters of 3 votes; 5 would do" in str(refused.value)
