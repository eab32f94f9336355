"""How far each rater can be believed, from votes alone: some judge with care, some tick at random.

A rater is careful (right with one probability for all such) or careless (says yes at one rate for all such, whatever
the reply). Who is which shows where others, or a model that never saw the rater's own votes, say what the reply was.

Implements: Dawid & Skene, Applied Statistics 28 (1979), 20-28, with one coin a kind of rater; the model as a rater:
Raykar et al., JMLR 11 (2010), 1297-1322.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from nightschool.errors import TooLittleDataError
from nightschool.types import Json
from nightschool.valuation.rates import unflipped

MIN_VOTES = 40
MIN_RATERS = 5
MIN_EACH = 3  # votes of a rater who counts towards those five
ROUNDS = 200
STARTS = (0.1, 0.5, 0.9)  # how often careless ones say yes: from one alone the search may end in the wrong place
SURE = 5.991464547107979  # twice the gain in log-likelihood that two further settings have by chance, 5 %


@dataclass(frozen=True, slots=True)
class Vote:
    """One rater's yes or no on one item; `expected`: how many of all raters would say yes to it, in [0, 1], by a model
    that learned from votes and saw none of this rater's."""

    item: str
    rater: str
    good: bool
    expected: float


@dataclass(frozen=True, slots=True)
class Raters:
    """`accuracy` by rater: how often a vote of theirs is right; `unknown`: of somebody who never voted before."""

    accuracy: dict[str, float]
    unknown: float
    report: Json

    def of(self, rater: str | None) -> float:
        return self.accuracy.get(rater or "", self.unknown)


def fit_raters(votes: Sequence[Vote]) -> Raters:
    """Tell careful raters from careless ones.

    The report: the share of `careless` ones, how often careful ones are `right`, and twice the log-likelihood `gained`
    over taking all for alike.

    Raises:
        TooLittleDataError: fewer than 40 votes, or than 5 raters with 3 votes each; or chance gains as much (5 %):
            then nothing tells them apart, and how often they are right shows nowhere.
    """
    raters, who = np.unique([vote.rater for vote in votes], return_inverse=True)
    often = int((np.bincount(who, minlength=len(raters)) >= MIN_EACH).sum()) if len(votes) else 0
    for found, needed, name in ((len(votes), MIN_VOTES, "votes"), (often, MIN_RATERS, f"raters of {MIN_EACH} votes")):
        if found < needed:
            raise TooLittleDataError("Raters are not told apart.", f"{found} {name}; {needed} would do.", "")
    apart = max((_Mixture.fit(votes, who, yes) for yes in STARTS), key=lambda found: found.gained)
    if apart.gained <= SURE:
        why = f"{len(raters)} raters look alike: chance would tell them apart as well."
        raise TooLittleDataError("Raters are not told apart.", why, "")
    accuracy = apart.careful * apart.right + (1 - apart.careful) * 0.5
    report = {"votes": len(votes), "raters": len(raters)}
    report |= {name: getattr(apart, name) for name in ("careless", "right", "gained")}
    return Raters(dict(zip(raters.tolist(), accuracy.tolist(), strict=True)), apart.accuracy, report)


@dataclass(frozen=True, slots=True)
class _Mixture:
    """`careful` (R,): the probability that a rater is. `right`: of a careful vote. `careless`: the share who are not.
    `gained`: twice the log-likelihood over that of all votes by what is expected of them."""

    careful: np.ndarray
    right: float
    careless: float
    gained: float

    @property
    def accuracy(self) -> float:
        return (1 - self.careless) * self.right + self.careless * 0.5

    @classmethod
    def fit(cls, votes: Sequence[Vote], who: np.ndarray, yes: float) -> _Mixture:
        """Expectation maximization. What an item is, is said by what is expected, put right for the votes it rests on
        (`rates.unflipped`), and by the votes of others on it."""
        good = np.array([vote.good for vote in votes])
        expected = np.clip([vote.expected for vote in votes], 1e-3, 1 - 1e-3)
        items = np.unique([vote.item for vote in votes], return_inverse=True)[1]
        count, right, careless, likelihood = int(who.max()) + 1, 0.9, 0.3, -np.inf
        alike = float(np.log(np.where(good, expected, 1 - expected)).sum())
        careful = np.full(count, 1 - careless)
        for _ in range(ROUNDS):
            wrong = (1 - careless) * (1 - right)
            prior = np.clip(unflipped(expected, careless * yes + wrong, careless * (1 - yes) + wrong), 0.01, 0.99)
            accuracy = (careful * right + (1 - careful) * 0.5)[who]
            told = np.where(good, 1, -1) * special.logit(accuracy)
            p = special.expit(special.logit(prior) + np.bincount(items, told)[items] - told)
            agrees = np.where(good, p, 1 - p)
            of_careful = agrees * right + (1 - agrees) * (1 - right)
            logs = [np.bincount(who, np.log(x), count) for x in (of_careful, np.where(good, yes, 1 - yes))]
            both = np.logaddexp(logs[0] + np.log1p(-careless), logs[1] + np.log(careless))
            careful = np.exp(logs[0] + np.log1p(-careless) - both)
            mine = careful[who]
            right = float(np.clip((mine * agrees * right / of_careful).sum() / max(mine.sum(), 1e-9), 0.55, 0.99))
            yes = float(np.clip(((1 - mine) @ good) / max((1 - mine).sum(), 1e-9), 0.05, 0.95))
            careless = float(np.clip(1 - careful.mean(), 0.01, 0.95))
            if abs(float(both.sum()) - likelihood) < 1e-9:
                break
            likelihood = float(both.sum())
        return cls(careful, right, careless, 2 * (likelihood - alike))
