"""Rates behind an imperfect judge: corrected for what it gets wrong, with the interval that costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nightschool.errors import RefusedError, TooLittleDataError

Z_95 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Judged:
    """What a judge was measured to do on labelled rows: right on `hits` of `good` ones, on `passes` of `bad` ones."""

    hits: float
    good: int
    passes: float
    bad: int

    @property
    def sensitivity(self) -> float:
        return self.hits / self.good

    @property
    def specificity(self) -> float:
        return self.passes / self.bad


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean with its standard error; `low` and `high` end its 95 % interval, which may leave the range of values."""

    value: float
    error: float

    @property
    def low(self) -> float:
        return self.value - Z_95 * self.error

    @property
    def high(self) -> float:
        return self.value + Z_95 * self.error


def mean_of_clusters(values: np.ndarray, clusters: Sequence[str]) -> Mean:
    """The mean of values (N,) of which those of one cluster depend on each other.

    Raises: TooLittleDataError, below two clusters.
    """
    places = np.unique(np.asarray(clusters), return_inverse=True)[1]
    count = int(places.max()) + 1 if len(places) else 0
    if count < 2:
        raise TooLittleDataError("There is no interval.", f"All {len(places)} values come from one.", "")
    mean = float(values.mean())
    sums = np.bincount(places, values - mean)
    return Mean(mean, math.sqrt(float(sums @ sums) * count / (count - 1)) / len(values))


def unflipped(rewards: np.ndarray | float, false_good: float, false_bad: float) -> np.ndarray:
    """(r - e0) / (1 - e0 - e1): in expectation the true reward where good is reported wrongly at e1, bad at e0.

    Implements: Natarajan et al., NeurIPS 2013, lemma 1. Edge: single values leave [0, 1]; their mean is right.
    Raises: RefusedError, where the judge tells good from bad no better than a coin.
    """
    told = 1 - false_good - false_bad
    if told <= 0:
        raise RefusedError(
            "The judge cannot be corrected for.",
            f"It calls {false_good:.2f} of the bad ones good and {1 - false_bad:.2f} of the good ones.",
            "Use another judge, or more labels to measure this one by.",
        )
    return (np.asarray(rewards, dtype=float) - false_good) / told


def corrected_rate(share: float, count: int, judge: Judged) -> Mean:
    """The true share of good ones among `count` of which the judge called `share` good.

    Implements: Rogan & Gladen, Am. J. Epidemiol. 107 (1978), 71-76, and Lee et al., arXiv:2511.21140; the error by the
    delta method, from all three samples.
    Raises: RefusedError as `unflipped`; TooLittleDataError where nothing of one kind was labelled.
    """
    if not (count and judge.good and judge.bad):
        raise TooLittleDataError(
            "The rate cannot be corrected.",
            f"{judge.good} good and {judge.bad} bad ones are labelled, {count} judged.",
            "Label some of each.",
        )
    q1, q0 = judge.sensitivity, judge.specificity
    value = float(unflipped(share, 1 - q0, 1 - q1))
    spread = share * (1 - share) / count
    spread += (1 - value) ** 2 * q0 * (1 - q0) / judge.bad + value**2 * q1 * (1 - q1) / judge.good
    return Mean(value, math.sqrt(spread) / (q0 + q1 - 1))


def agreement(first: Sequence[bool], second: Sequence[bool]) -> float | None:
    """Cohen's kappa of two who labelled the same rows; `None` where chance alone would make them agree always."""
    a, b = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    if not len(a):
        return None
    chance = a.mean() * b.mean() + (1 - a.mean()) * (1 - b.mean())
    return None if chance == 1 else float(((a == b).mean() - chance) / (1 - chance))
