"""What held-out logs say of a candidate: estimates of its gain over the incumbent, and whether they may be believed.

A row is a reply of the incumbent's that neither policy was trained on. Its weight is the candidate's probability of it
over the incumbent's. Logs know only what the incumbent says: the further a candidate moves from that, the less they
tell, whatever their number. So the first result is a standing, and most candidates on long sessions get `REFUSE`.

A mean of a judge's scores is no estimate here, nor is any that drops or caps weights in its correction: those take over
the judge's taste, and pass candidates that changed style alone.

Implements: Dudik et al., arXiv:1103.4601 (the baseline form, without a model of replies); Ionides, JCGS 17 (2008),
295-311 (capped weights, here for the lower bound alone).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from nightschool.valuation.rates import Mean, mean_of_clusters

LEAST_EFFECTIVE = 200  # rows' worth of evidence below which nothing is claimed
CAP, CAP_OF_MANY, MANY = 5.0, 10.0, 4000


class Standing(StrEnum):
    """What logs may be used for: a gain with its interval, its sign alone, or nothing."""

    LEVEL = "level"
    SIGN = "sign"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Logged:
    """Held-out replies of one version, scored under both policies by one engine. Shapes: (N,) each.

    `log_ratios`: nats, candidate minus incumbent, summed over the sampled tokens, both at the temperature that sampled
    them and without a cut of the support. `rewards` in [0, 1]. `values`: the success expected before the reply was
    given, by a model that did not see the row. `clusters`: users or sessions.
    """

    log_ratios: np.ndarray
    rewards: np.ndarray
    values: np.ndarray
    clusters: Sequence[str]

    @property
    def weights(self) -> np.ndarray:
        return np.exp(self.log_ratios)

    @property
    def surprises(self) -> np.ndarray:
        """By how much rewards differ from what was expected."""
        return self.rewards - self.values

    @property
    def cap(self) -> float:
        return CAP_OF_MANY if len(self.log_ratios) >= MANY else CAP


@dataclass(frozen=True, slots=True)
class Overlap:
    """How much of the candidate the logs have seen.

    `kl`: nats a reply, mean of minus the log-ratio; `k3` the same by mean(w - 1 - log w). `root`: mean of the weights'
    square roots, which no number of rows flatters. `effective`: (sum w)^2 / sum w^2, in rows. `largest`: one row's
    share of all weight. `weight` with its `error`: the mean, 1 where nothing is unseen. `lost`: 1 - mean(min(w, cap)).
    """

    kl: float
    k3: float
    root: float
    effective: float
    largest: float
    weight: float
    error: float
    lost: float

    def standing(self) -> Standing:
        """Thresholds of a simulation, not of recorded releases (see the module): LEVEL within 0.25 nats, SIGN 0.5."""
        if self.effective < LEAST_EFFECTIVE or abs(self.weight - 1) > 3 * self.error:
            return Standing.REFUSE
        if self.kl <= 0.25 and self.root >= 0.93 and self.lost <= 0.02 and self.largest <= 0.03:
            return Standing.LEVEL
        if self.kl <= 0.5 and self.root >= 0.88 and self.lost <= 0.06 and self.largest <= 0.05:
            return Standing.SIGN
        return Standing.REFUSE


def overlap(rows: Logged) -> Overlap:
    """Raises: TooLittleDataError, below two rows."""
    w = rows.weights
    mean = mean_of_clusters(w, rows.clusters)
    return Overlap(
        kl=float(-rows.log_ratios.mean()),
        k3=float((np.expm1(rows.log_ratios) - rows.log_ratios).mean()),
        root=float(np.sqrt(w).mean()),
        effective=float(w.sum() ** 2 / (w**2).sum()),
        largest=float(w.max() / w.sum()),
        weight=mean.value,
        error=mean.error,
        lost=float(1 - np.minimum(w, rows.cap).mean()),
    )


def gain(rows: Logged) -> Mean:
    """mean((w - 1)(r - m)): unbiased for any expectation m made before the reply; the default."""
    return mean_of_clusters((rows.weights - 1) * rows.surprises, rows.clusters)


def normalized_gain(rows: Logged) -> Mean:
    """sum(w (r - m)) / sum(w) - mean(r - m): what noise in the scores inflates least. Error by the delta method."""
    w, y = rows.weights, rows.surprises
    value = float(w @ y / w.sum())
    error = mean_of_clusters(w * (y - value) / w.mean() - (y - y.mean()), rows.clusters).error
    return Mean(value - float(y.mean()), error)


def sign_of_gain(rows: Logged, cap: float | None = None) -> Mean:
    """The covariance of capped weights and surprises: its sign alone says something, its size shrinks to 0."""
    w, y = np.minimum(rows.weights, cap or rows.cap), rows.surprises
    return mean_of_clusters((w - w.mean()) * (y - y.mean()), rows.clusters)


def least_gain(rows: Logged, cap: float | None = None) -> Mean:
    """mean((min(w, cap) - 1) r): in expectation never above the gain, as what is capped or unseen counts reward 0."""
    return mean_of_clusters((np.minimum(rows.weights, cap or rows.cap) - 1) * rows.rewards, rows.clusters)
