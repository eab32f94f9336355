"""The success rate of everybody, of whom only some spoke: what the spoken for say of the silent, and what they cannot.

Those who speak are not drawn at random. Three answers, each with what it takes for granted: the rate of those who spoke
(silence says nothing), the same reweighed within strata of how likely one is to speak (nothing but what a request shows
tells the silent apart), and bounds from those who were asked at random (nothing at all).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nightschool.errors import TooLittleDataError
from nightschool.valuation.rates import Z_95, Mean, mean_of_clusters

STRATA = 5
LEAST_HEARD = 20


@dataclass(frozen=True, slots=True)
class Heard:
    """Replies, spoken of or not. Shapes: (N,) each. `rewards` counts where `heard`; `clusters` are users."""

    heard: np.ndarray
    rewards: np.ndarray
    clusters: Sequence[str]

    def of(self, rows: np.ndarray) -> Heard:
        return Heard(self.heard[rows], self.rewards[rows], np.asarray(self.clusters)[rows].tolist())


@dataclass(frozen=True, slots=True)
class Bounds:
    """The rate lies between `low` and `high`; with sampling error, 95 %, between `lowest` and `highest`. `answered` is
    the share of `asked` who spoke."""

    low: float
    high: float
    lowest: float
    highest: float
    answered: float
    asked: int


def spoken_rate(rows: Heard) -> Mean:
    """The rate of those who spoke. Raises: TooLittleDataError, below 20 of them."""
    spoke = np.flatnonzero(rows.heard)
    if len(spoke) < LEAST_HEARD:
        raise TooLittleDataError("There is no rate.", f"{len(spoke)} replies were judged; {LEAST_HEARD} would do.", "")
    return mean_of_clusters(rows.rewards[spoke], rows.of(spoke).clusters)


def stratified_rate(rows: Heard, chances: np.ndarray) -> Mean:
    """The rates of those who spoke within strata of about equal size by their chance of speaking (N,), each counting by
    all that are in it. Equal chances share a stratum.

    Implements: Rosenbaum & Rubin, JASA 79 (1984), 516-524 (subclassification on the propensity). Departs: a stratum
    where fewer than two users spoke joins the one below.
    Raises: TooLittleDataError, below 20 who spoke.
    """
    spoken_rate(rows)
    rounded = np.round(chances, 9)
    places = np.searchsorted(np.sort(rounded), rounded) * STRATA // len(rounded)
    strata: list[np.ndarray] = []
    for place in np.unique(places):
        part = np.flatnonzero(places == place)
        if strata and (_voices(rows, part) < 2 or _voices(rows, strata[-1]) < 2):
            strata[-1] = np.concatenate([strata[-1], part])
        else:
            strata.append(part)
    found = [(len(part) / len(rounded), spoken_in(rows.of(part))) for part in strata]
    value = sum(share * rate.value for share, rate in found)
    return Mean(value, math.sqrt(sum((share * rate.error) ** 2 for share, rate in found)))


def asked_bounds(rows: Heard) -> Bounds:
    """What the rate must lie between, of replies whose users were asked at random: all who stay silent were content, or
    none was.

    Implements: Manski, AER 80 (1990), 319-323; the outer ends by the normal interval of each bound (conservative).
    Raises: TooLittleDataError, below 20 who were asked or two users.
    """
    count = len(rows.heard)
    if count < LEAST_HEARD:
        raise TooLittleDataError("There are no bounds.", f"{count} replies asked; {LEAST_HEARD} would do.", "")
    worst = mean_of_clusters(np.where(rows.heard, rows.rewards, 0.0), rows.clusters)
    best = mean_of_clusters(np.where(rows.heard, rows.rewards, 1.0), rows.clusters)
    lowest, highest = max(0.0, worst.value - Z_95 * worst.error), min(1.0, best.value + Z_95 * best.error)
    return Bounds(worst.value, best.value, lowest, highest, float(rows.heard.mean()), count)


def spoken_in(rows: Heard) -> Mean:
    """The rate of those who spoke in one stratum."""
    spoke = np.flatnonzero(rows.heard)
    return mean_of_clusters(rows.rewards[spoke], rows.of(spoke).clusters)


def _voices(rows: Heard, part: np.ndarray) -> int:
    return len({rows.clusters[row] for row in part.tolist() if rows.heard[row]})
