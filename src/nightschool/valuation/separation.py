"""Areas under the curve by resampling whole clusters: where several fits scored the rows, and for differences of areas,
which the closed form of `clustered` does not know. And shares whose intervals count clusters, not rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import special

from nightschool.valuation.clustered import Interval

NUM_DRAWS = 1000
ENDS = (0.025, 0.975)


def cluster_draws(clusters: Sequence[object], num: int = NUM_DRAWS, seed: int = 0) -> np.ndarray:
    """How often each row comes up when whole clusters are drawn with replacement: (num, N)."""
    _, owners = np.unique(np.asarray(clusters), return_inverse=True)
    size = int(owners.max()) + 1
    drawn = np.random.default_rng(seed).multinomial(size, np.full(size, 1 / size), size=num)
    return drawn[:, owners].astype(np.int16)


def auc(
    scores: np.ndarray, positive: np.ndarray, draws: np.ndarray, strata: np.ndarray | None = None
) -> Interval | None:
    """The chance that a positive row scores above another one, ties half; the interval is a percentile bootstrap.

    Where several fits scored the rows, `strata` names them: only rows scored by one fit are compared. A fit without the
    rows of a group expects too much of them where they did badly, and the reverse; across fits that counts against it.

    Shapes: scores, positive, strata (N,); draws (B, N) of `cluster_draws`. Edge: one class alone has none.
    """
    value = weighted_auc(scores, positive, np.ones((1, len(scores))), strata)
    if np.isnan(value[0]):
        return None
    return estimate(float(value[0]), weighted_auc(scores, positive, draws, strata))


def weighted_auc(
    scores: np.ndarray, positive: np.ndarray, weights: np.ndarray, strata: np.ndarray | None = None
) -> np.ndarray:
    """(B,) areas, one for each row of `weights` (B, N). Edge: NaN where a class has no weight."""
    parts = [np.arange(len(scores))] if strata is None else [np.flatnonzero(strata == one) for one in np.unique(strata)]
    won, pairs = np.zeros(len(weights)), np.zeros(len(weights))
    for rows in parts:
        better, all_pairs = _compared(scores[rows], positive[rows], weights[:, rows])
        won, pairs = won + better, pairs + all_pairs
    return np.divide(won, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)


def _compared(scores: np.ndarray, positive: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weight of the pairs that the positive row wins, and of all pairs: (B,) each."""
    order = np.argsort(scores, kind="stable")
    ranked = scores[order]
    starts = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])
    counted = weights[:, order].astype(float)
    up = np.add.reduceat(counted * positive[order], starts, axis=1)
    down = np.add.reduceat(counted * ~positive[order], starts, axis=1)
    below = np.cumsum(down, axis=1) - down
    return (up * (below + down / 2)).sum(axis=1), up.sum(axis=1) * down.sum(axis=1)


def estimate(value: float, draws: np.ndarray) -> Interval:
    """A number with the percentiles of its draws; those that are NaN do not count."""
    low, high = np.nanquantile(draws, ENDS)
    return Interval(value, float(low), float(high))


def share(values: np.ndarray, clusters: Sequence[object]) -> Interval | None:
    """The mean of values in [0, 1]. Its interval is that of as many yes-or-no answers as there are clusters (a
    Jeffreys interval): rows of one cluster may all say the same. Edge: no rows have none."""
    if not len(values):
        return None
    mean, size = float(values.mean()), len(set(clusters))
    good, bad = mean * size + 0.5, (1 - mean) * size + 0.5
    low, high = (float(special.betaincinv(good, bad, end)) for end in ENDS)
    return Interval(mean, 0.0 if mean == 0 else low, 1.0 if mean == 1 else high)
