"""Success rates that are counted, not modeled: for prompts or clusters of them that recur.

`BetaTracker` follows one prompt through training, forgetting as the policy moves. `fit_tracker` counts a log per
cluster, older rows less, and shrinks each cluster's rate towards all of them as far as their spread allows.

Implements: SPO, arXiv:2509.13232 (code read; unverified against the paper); SPO++, arXiv:2608.24870, order of evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from nightschool.types import Json
from nightschool.valuation.calibration import fold_of
from nightschool.valuation.reliability import Outcomes, report, require_calibrated
from nightschool.valuation.success import require_enough

HALVED_AT = 0.06  # nats per token of drift that halve what is remembered
KEEP_LEAST, KEEP_MOST = 0.875, 0.96
EXPLORE = 0.05
LOWER_END = 0.1  # of an 80 % interval
MOST_STRENGTH = 1000.0


@dataclass(frozen=True, slots=True)
class BetaTracker:
    """Successes `a` and failures `b` remembered of one prompt; without any, half of each."""

    a: float = 0.5
    b: float = 0.5

    @classmethod
    def offline(cls, num_good: int, num_rollouts: int) -> BetaTracker:
        """From rollouts before training, told as the most evidence that the fastest forgetting keeps: 8."""
        kept = 1 / (1 - KEEP_LEAST)
        share = (num_good + 0.5) / (num_rollouts + 1)
        return cls(kept * share, kept * (1 - share))

    @property
    def value(self) -> float:
        return self.a / (self.a + self.b)

    @property
    def interest(self) -> float:
        """How often the prompt should be drawn: most where success is a coin's toss, never not at all."""
        return (self.value * (1 - self.value)) ** 0.5 + EXPLORE

    def updated(self, reward: float, drift: float) -> BetaTracker:
        """With one more outcome. `drift`: mean absolute change of the last reply's log-probabilities, per token."""
        kept = min(max(2 ** (-drift / HALVED_AT), KEEP_LEAST), KEEP_MOST)
        return BetaTracker(kept * self.a + reward, kept * self.b + 1 - reward)


def follow(tracker: BetaTracker, outcomes: Sequence[tuple[int, float, float]]) -> tuple[list[float], BetaTracker]:
    """The value before each outcome (version number, reward, drift), and the tracker after all of them.

    Evidence is taken in by the version that produced it, whenever it arrived; values come in the order given.
    """
    values = [0.0] * len(outcomes)
    for place in sorted(range(len(outcomes)), key=lambda place: outcomes[place][0]):
        values[place] = tracker.value
        tracker = tracker.updated(*outcomes[place][1:])
    return values, tracker


@dataclass(frozen=True, slots=True)
class Counts:
    """Per cluster, (C,) each: weights, weighted rewards, weighted squares of rewards."""

    weight: np.ndarray
    good: np.ndarray
    squares: np.ndarray

    @classmethod
    def of(cls, clusters: np.ndarray, rewards: np.ndarray, weights: np.ndarray, size: int) -> Counts:
        parts = (weights, weights * rewards, weights * rewards**2)
        return cls(*(np.bincount(clusters, part, minlength=size) for part in parts))

    def without(self, other: Counts) -> Counts:
        return Counts(self.weight - other.weight, self.good - other.good, self.squares - other.squares)

    def prior(self) -> tuple[float, float]:
        """The Beta prior that the clusters imply for each other: its mean is theirs, its strength what their spread
        leaves (an analysis of variance between and within them).

        Edge: no more spread than chance means that all clusters are one; the strength is then that of all rows, at
        most 1000. The mean counts one row more, half of it good: a log that has faded away knows nothing.
        """
        weight, rates = self.weight, self.good / np.maximum(self.weight, 1e-12)
        total, used = float(weight.sum()), int((weight > 1e-9).sum())
        mean = (float(self.good.sum()) + 0.5) / (total + 1)
        within = float((self.squares - weight * rates**2).sum()) / max(total - used, 1e-12)
        most = min(max(total, 1.0), MOST_STRENGTH)
        strength = most
        if used > 1 and total > used:
            size = (total - float((weight**2).sum()) / total) / (used - 1)
            between = float((weight * (rates - mean) ** 2).sum()) / (used - 1)
            spread = (between - within) / size
            if spread > 0:
                strength = min(max(within / spread, 1.0), most)
        return mean * strength, (1 - mean) * strength


@dataclass(frozen=True, slots=True)
class ClusterTracker:
    """`p_hat` and `p_lo` (N,) are cross-fitted estimates of the rows it was made from; `counts` are
    successes and failures by cluster, those of the `prior` included, which is all that is known of any other cluster.
    """

    p_hat: np.ndarray
    p_lo: np.ndarray
    report: Json
    counts: dict[str, tuple[float, float]]
    prior: tuple[float, float]

    def predict(self, clusters: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """(p_hat, p_lo) of clusters. Shapes: (N,) each."""
        counts = np.array([self.counts.get(cluster, self.prior) for cluster in clusters])
        found = rates(counts[:, 0], counts[:, 1])
        return found[:, 0], found[:, 1]


def rates(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Mean and lower end of the 80 % interval of Beta(a, b) rates: (N,) each -> (N, 2)."""
    return np.column_stack([a / (a + b), special.betaincinv(a, b, LOWER_END)])


def fit_tracker(
    clusters: Sequence[str],
    rewards: Sequence[float],
    weights: Sequence[float],
    ages: Sequence[float],
    principals: Sequence[str],
    slices: Sequence[str] = (),
) -> ClusterTracker:
    """Count successes per cluster; arguments and refusals are those of `success.fit_success_model`.

    A row's own estimate leaves out everything its principal did, in its cluster and in the prior.
    """
    targets = np.asarray(rewards, dtype=float)
    require_enough(targets, principals)
    decayed = np.asarray(weights, dtype=float) * 0.5 ** np.asarray(ages, dtype=float)
    names, numbers = np.unique(np.asarray(clusters), return_inverse=True)
    everything = Counts.of(numbers, targets, decayed, len(names))

    def without(groups: Sequence[object]) -> np.ndarray:
        """Of each row, what is said of its cluster by a log in which its group never was: (N, 2)."""
        counts = np.zeros((len(targets), 2))
        owners = np.unique(np.asarray(groups), return_inverse=True)[1]
        for owner in range(owners.max() + 1):
            mine = np.flatnonzero(owners == owner)
            others = everything.without(Counts.of(numbers[mine], targets[mine], decayed[mine], len(names)))
            prior = others.prior()
            weight = np.maximum(others.weight[numbers[mine]], 0.0)
            good = np.clip(others.good[numbers[mine]], 0.0, weight)
            counts[mine] = np.column_stack([prior[0] + good, prior[1] + weight - good])
        return rates(counts[:, 0], counts[:, 1])

    estimates = without(principals)
    folded = without([fold_of(principal) for principal in principals])
    found = report(folded[:, 0], Outcomes(targets, decayed, principals, slices))
    require_calibrated(found, "cluster tracker")
    a, b = everything.prior()
    rows = zip(names.tolist(), everything.good.tolist(), everything.weight.tolist(), strict=True)
    counts = {name: (a + good, b + weight - good) for name, good, weight in rows}
    return ClusterTracker(estimates[:, 0], estimates[:, 1], found, counts, (a, b))
