"""All signals as one calibrated probability of success, learned from the sessions of one agent that people judged.

A logistic model of standardized signals; how strongly it is shrunk is chosen by what was left out, in groups of
principals. Signs are learned: where escalating is right, an escalation raises the probability. What cannot be known of
a session counts as its mean. Every prediction of a row it was made from comes from a fit that never saw its principal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import linalg, special

from nightschool.valuation.calibration import fold_of
from nightschool.valuation.clustered import Interval
from nightschool.valuation.logistic import Logistic, Platt, fit_logistic, fit_platt
from nightschool.valuation.reliability import Z_95

RIDGES = (1.0, 10.0, 100.0, 1000.0)
CONSTANT = 3.0  # so that the common rate is shrunk less than what departs from it
FARTHEST = 4.0  # standard deviations
STILL = 1e-9
IDENTITY = Platt(1.0, 0.0, np.zeros((2, 2)))


@dataclass(frozen=True, slots=True)
class Scorer:
    """One fit: a direction among S signals, in which sessions lie one unit apart, and what a unit says.

    Shapes: `center`, `scale` (S,). The constant of `logistic` is left to `platt`, which maps to log-odds of success.
    """

    center: np.ndarray
    scale: np.ndarray
    logistic: Logistic
    ridge: float
    unit: float = 1.0
    platt: Platt = IDENTITY

    def features(self, values: np.ndarray) -> np.ndarray:
        """(N, S + 1): compressed, standardized, a constant last."""
        return _features(values, self.center, self.scale)

    def raw(self, values: np.ndarray) -> np.ndarray:
        return self.features(values)[:, :-1] @ self.logistic.coefficients[:-1] / self.unit

    def log_odds(self, values: np.ndarray) -> np.ndarray:
        scores = self.raw(values)
        return self.platt.apply(scores, np.zeros_like(scores))[0]


@dataclass(frozen=True, slots=True)
class Combination:
    """`log_odds` (N,) are predictions of the rows it was made from, each by fit and calibration that never saw its fold
    (`folds`), and so nothing of its principal. `weights` (S,) say by how much a standard deviation more of a signal
    moves the log-odds of success."""

    names: tuple[str, ...]
    scorer: Scorer
    log_odds: np.ndarray
    folds: np.ndarray
    weights: tuple[Interval, ...]

    @property
    def p_hat(self) -> np.ndarray:
        return special.expit(self.log_odds)

    def predict(self, values: np.ndarray) -> np.ndarray:
        """(N,) calibrated probabilities of success of sessions it has not seen."""
        return special.expit(self.scorer.log_odds(values))


def fit_combination(
    names: Sequence[str], values: np.ndarray, labels: np.ndarray, principals: Sequence[str], salt: str = ""
) -> Combination:
    """Fit on judged sessions.

    Shapes: values (N, S) with NaN for what is unknown, labels (N,) in [0, 1]. `salt` draws other folds.
    """
    folds = np.array([fold_of(salt + principal) for principal in principals])
    log_odds = np.zeros(len(labels))
    for fold in sorted(set(folds.tolist())):
        inside, outside = folds == fold, folds != fold
        log_odds[inside] = _fit(values[outside], labels[outside], folds[outside]).log_odds(values[inside])
    scorer = _fit(values, labels, folds)
    return Combination(tuple(names), scorer, log_odds, folds, _weights(scorer, values, labels, principals))


def _fit(values: np.ndarray, labels: np.ndarray, folds: np.ndarray) -> Scorer:
    """With the ridge whose fits predict left-out folds best, and the calibration that these would have needed.

    Edge: a signal that does not vary gets no weight; of one fold alone nothing can be left out.
    """
    if len(set(folds.tolist())) < 2:
        return _solved(values, labels, RIDGES[len(RIDGES) // 2])
    tried: list[tuple[float, float, Platt]] = []
    for ridge in RIDGES:
        scores = _left_out(values, labels, folds, ridge)
        platt = fit_platt(scores, labels, np.ones(len(labels)))
        tried.append((_loss(platt.apply(scores, np.zeros_like(scores))[0], labels), ridge, platt))
    _, ridge, platt = min(tried, key=lambda one: one[0])
    return replace(_solved(values, labels, ridge), platt=platt)


def _left_out(values: np.ndarray, labels: np.ndarray, folds: np.ndarray, ridge: float) -> np.ndarray:
    scores = np.zeros(len(labels))
    for fold in sorted(set(folds.tolist())):
        inside, outside = folds == fold, folds != fold
        scores[inside] = _solved(values[outside], labels[outside], ridge).raw(values[inside])
    return scores


def _solved(values: np.ndarray, labels: np.ndarray, ridge: float) -> Scorer:
    """Shrunk to the common rate."""
    compressed = _compressed(values)
    known = ~np.isnan(compressed)
    count = np.maximum(known.sum(axis=0), 1)
    center = np.where(known, compressed, 0.0).sum(axis=0) / count
    deviation = np.sqrt((np.where(known, compressed - center, 0.0) ** 2).sum(axis=0) / count)
    scale = np.where(deviation > STILL, deviation, 1.0)
    x = _features(values, center, scale)
    rate = (labels.sum() + 0.5) / (len(labels) + 1)
    origin = np.zeros(x.shape[1])
    origin[-1] = special.logit(rate) / CONSTANT
    found = Scorer(center, scale, fit_logistic(x, labels, np.ones(len(x)), ridge, origin), ridge)
    spread = float(found.raw(values).std())
    return replace(found, unit=spread if spread > STILL else 1.0)


def _features(values: np.ndarray, center: np.ndarray, scale: np.ndarray) -> np.ndarray:
    off = np.clip((_compressed(values) - center) / scale, -FARTHEST, FARTHEST)
    return np.column_stack([np.nan_to_num(off, nan=0.0), np.full(len(values), CONSTANT)])


def _compressed(values: np.ndarray) -> np.ndarray:
    """Counts by their logarithm, so that a tenth call says less than the first."""
    return np.sign(values) * np.log1p(np.abs(values))


def _loss(scores: np.ndarray, labels: np.ndarray) -> float:
    return float((np.logaddexp(0, scores) - labels * scores).sum())


def _weights(scorer: Scorer, values: np.ndarray, labels: np.ndarray, principals: Sequence[str]) -> tuple[Interval, ...]:
    """Coefficients with 95 % intervals whose independent units are principals (a sandwich of the penalized fit)."""
    x = scorer.features(values)
    off = (labels - special.expit(x @ scorer.logistic.coefficients))[:, None] * x
    owners = np.unique(np.asarray(principals), return_inverse=True)[1]
    sums = np.zeros((int(owners.max()) + 1, x.shape[1]))
    np.add.at(sums, owners, off)
    among = sums.T @ sums * len(sums) / max(1, len(sums) - 1)
    bread = linalg.cho_solve((scorer.logistic.factor, True), np.eye(x.shape[1]))
    errors = np.sqrt(np.maximum(np.diag(bread @ among @ bread), 0.0))
    per_unit = scorer.platt.slope / scorer.unit
    found = per_unit * scorer.logistic.coefficients[:-1]
    rows = zip(found.tolist(), (Z_95 * per_unit * errors[:-1]).tolist(), strict=True)
    return tuple(Interval(weight, weight - half, weight + half) for weight, half in rows)
