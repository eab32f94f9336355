"""How far a score tells two classes apart whose rows come in clusters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate between its two ends. Edge: with one cluster of a class the ends are NaN."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Separation:
    """`area`: the chance that an accepted row scores higher than a rejected one, ties counting one half; 0.5 is
    chance. `difference`: the mean score of accepted rows minus that of rejected ones."""

    area: Interval
    difference: Interval
    num_accepted: int
    num_rejected: int
    num_clusters: int


def separate(
    scores: Sequence[float], accepted: Sequence[bool], clusters: Sequence[str], level: float = 0.95
) -> Separation:
    """The area under the ROC curve and the difference of means, with Student's t intervals over clusters.

    The interval of the area counts one accepted and one rejected row more, each tied with all others: twenty rows that
    are told apart without an error are not told apart for certain.

    Implements: Obuchowski, Biometrics 53 (1997), 567-578: the variance of the area for clustered rows.
    Departs: the two tied rows, after Agresti & Min (Statistics in Medicine 24, 2005) for paired rates.
    Shapes: (N,) each. Edge: the degrees of freedom are one less than the clusters of the rarer class.
    """
    values, good = np.asarray(scores, dtype=float), np.asarray(accepted, dtype=bool)
    names = np.unique(np.asarray(clusters), return_inverse=True)[1]
    own = [len(set(names[side].tolist())) for side in (good, ~good)]
    critical = _critical(min(own) - 1, level)
    return Separation(
        _area(values, good, names, critical),
        _difference(values, good, names, critical),
        int(good.sum()),
        int((~good).sum()),
        len(set(names.tolist())),
    )


def mean_over(values: Sequence[float], clusters: Sequence[str], level: float) -> Interval:
    """The mean of rows with Student's t interval over clusters (ratio estimator)."""
    found = np.asarray(values, dtype=float)
    names = np.unique(np.asarray(clusters), return_inverse=True)[1]
    sums = np.bincount(names, found - found.mean())
    half = _critical(len(sums) - 1, level) * math.sqrt(_spread(sums)) / len(found)
    return _around(float(found.mean()), half)


def _area(values: np.ndarray, good: np.ndarray, names: np.ndarray, critical: float) -> Interval:
    high, low = values[good][:, None], values[~good][None, :]
    wins = (high > low) + 0.5 * (high == low)
    padded = np.pad(wins, ((0, 1), (0, 1)), constant_values=0.5)
    middle = float(padded.mean())
    fresh = int(names.max()) + 1  # the tied rows belong to nobody
    ours, theirs = np.append(names[good], fresh), np.append(names[~good], fresh + 1)
    upper = np.bincount(ours, padded.mean(axis=1) - middle, minlength=fresh + 2)
    lower = np.bincount(theirs, padded.mean(axis=0) - middle, minlength=fresh + 2)
    num_upper, num_lower, num_all = len(set(ours.tolist())), len(set(theirs.tolist())), fresh + 2
    rows, columns = padded.shape
    variance = (
        float(upper @ upper) * num_upper / (num_upper - 1) / rows**2
        + float(lower @ lower) * num_lower / (num_lower - 1) / columns**2
        + 2 * float(upper @ lower) * num_all / (num_all - 1) / (rows * columns)
    )
    half = critical * math.sqrt(max(variance, 0.0))
    return Interval(float(wins.mean()), max(0.0, middle - half), min(1.0, middle + half))


def _difference(values: np.ndarray, good: np.ndarray, names: np.ndarray, critical: float) -> Interval:
    means = float(values[good].mean()), float(values[~good].mean())
    parts = np.where(good, (values - means[0]) / good.sum(), -(values - means[1]) / (~good).sum())
    return _around(means[0] - means[1], critical * math.sqrt(_spread(np.bincount(names, parts))))


def _spread(sums: np.ndarray) -> float:
    """The variance of a sum whose independent terms are `sums`, each off its mean."""
    return float(sums @ sums) * len(sums) / max(1, len(sums) - 1)


def _critical(freedom: int, level: float) -> float:
    return float(special.stdtrit(freedom, (1 + level) / 2)) if freedom > 0 else math.nan


def _around(middle: float, half: float) -> Interval:
    return Interval(middle, middle - half, middle + half)
