"""Intervals and sample sizes for comparing two policies. Pure functions of numbers.

The independent unit is the cluster (the principal): all of its sessions under one policy are averaged first,
so ten sessions of one customer weigh as much as one of another and never count as ten.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special

from nightschool.errors import TooLittleDataError

POWER = 0.8  # "8 times in 10"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A difference with its interval and everything the interval was computed from.

    `low` and `high` lie `critical` standard errors from `center`; `center` differs from `difference` only
    for rates (`paired_rates`). `deviation` is the standard deviation of one cluster's difference.
    """

    difference: float
    low: float
    high: float
    num_clusters: int
    deviation: float
    standard_error: float
    degrees_of_freedom: int
    critical: float
    center: float


def paired(differences: Sequence[float], alpha: float = 0.05) -> Estimate:
    """Student's t interval on cluster means of paired differences, one-sided `alpha` on each side.

    Degrees of freedom: number of clusters minus one. With alpha 0.05 the interval is the usual 90 % one, and
    "low > 0" is the one-sided 5 % test.

    Raises:
        TooLittleDataError: one cluster has no standard error.
    """
    values = _finite(differences)
    mean, deviation = float(values.mean()), float(values.std(ddof=1))
    return _estimate(mean, mean, deviation, deviation / math.sqrt(len(values)), len(values), alpha)


def paired_rates(differences: Sequence[float], alpha: float = 0.05) -> Estimate:
    """As `paired`, for differences of rates (within -1 and 1), honest where almost nobody differs.

    Two pseudo-clusters with the sum 0 and the sum of squares 1 are added, so that 120 clusters without one
    difference give an interval of some width, and not the certainty that a deviation of zero would claim.

    Implements: Agresti & Min, Statistics in Medicine 24 (2005), 729-740: half an observation to each cell of the
    paired table. For 0/1 outcomes that is exactly what is added here.
    """
    values = _finite(differences)
    n = len(values)
    center = float(values.sum()) / (n + 2)
    spread = float((values**2).sum()) + 1.0 - (n + 2) * center**2
    deviation = math.sqrt(spread / (n + 1))
    return _estimate(float(values.mean()), center, deviation, deviation / math.sqrt(n + 2), n, alpha)


def _estimate(mean: float, center: float, deviation: float, error: float, n: int, alpha: float) -> Estimate:
    critical = float(special.stdtrit(n - 1, 1 - alpha))
    half = critical * error
    return Estimate(mean, center - half, center + half, n, deviation, error, n - 1, critical, center)


def _finite(differences: Sequence[float]) -> np.ndarray:
    values = np.asarray(differences, dtype=np.float64)
    if len(values) < 2:
        raise TooLittleDataError(
            f"{len(values)} independent cases have no standard error.",
            "Two at least are needed, and an exam asks for many more.",
            "Let more customers take the exam.",
        )
    if not np.isfinite(values).all():
        raise ValueError("a difference is not finite; a missing value is left out, never a number")
    return values


def wilson(successes: float, n: int, alpha: float = 0.05) -> tuple[float, float]:
    """Score interval of one rate, `alpha` on each side (0.025 for the usual 95 % interval).

    Implements: Wilson, JASA 22 (1927), 209-212.
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"{successes} of {n} is no rate")
    z2 = float(special.ndtri(1 - alpha)) ** 2
    rate = successes / n
    middle = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (rate * (1 - rate) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    # at 0 of n and n of n the formula's end is 0 and 1, but rounding leaves 1e-18 of either sign
    return (0.0 if successes == 0 else middle - half), (1.0 if successes == n else middle + half)


def newcombe(first: tuple[float, int], second: tuple[float, int], alpha: float = 0.05) -> tuple[float, float]:
    """Interval of first rate minus second, two independent groups given as (successes, n).

    Implements: Newcombe, Statistics in Medicine 17 (1998), 873-890, method 10 (hybrid score).
    """
    (low_1, high_1), (low_2, high_2) = wilson(*first, alpha), wilson(*second, alpha)
    rate_1, rate_2 = first[0] / first[1], second[0] / second[1]
    down = math.hypot(rate_1 - low_1, high_2 - rate_2)
    up = math.hypot(high_1 - rate_1, rate_2 - low_2)
    return rate_1 - rate_2 - down, rate_1 - rate_2 + up


def paired_deviation(rate_1: float, rate_2: float, correlation: float) -> float:
    """Standard deviation of one customer's difference of two 0/1 outcomes with the given correlation."""
    v1, v2 = rate_1 * (1 - rate_1), rate_2 * (1 - rate_2)
    return math.sqrt(v1 + v2 - 2 * correlation * math.sqrt(v1 * v2))


def power(effect: float, deviation: float, n: int, alpha: float = 0.05) -> float:
    """Probability that the one-sided paired t test over `n` clusters sees a true `effect` (noncentral t)."""
    if deviation <= 0 or n < 2:
        raise ValueError("power needs a positive deviation and two clusters")
    critical = special.stdtrit(n - 1, 1 - alpha)
    # Far from the null the noncentral t underflows to NaN where the power is 1 for every purpose.
    return float(1 - special.nctdtr(n - 1, min(effect * math.sqrt(n) / deviation, 30.0), critical))


def smallest_effect(deviation: float, n: int, alpha: float = 0.05, wanted: float = POWER) -> float:
    """The smallest true effect that `power` sees with probability `wanted`."""
    unit = deviation / math.sqrt(n)
    root = optimize.brentq(lambda x: power(x * unit, deviation, n, alpha) - wanted, 0.0, 25.0)
    return float(root) * unit  # type: ignore[arg-type]


def needed_clusters(effect: float, deviation: float, alpha: float = 0.05, wanted: float = POWER) -> int:
    """Clusters with which a true `effect` is seen with probability `wanted`."""
    if effect <= 0 or deviation <= 0:
        raise ValueError("needed_clusters needs a positive effect and deviation")
    z = float(special.ndtri(1 - alpha) + special.ndtri(wanted))
    n = max(2, math.ceil((z * deviation / effect) ** 2))
    while power(effect, deviation, n, alpha) < wanted:  # t needs a few more than the normal
        n += max(1, n // 200)
    return n


def about(n: float) -> int:
    """Two significant digits, rounded up: a forecast deserves no more."""
    if n <= 100:
        return math.ceil(n)
    unit = 10 ** (math.floor(math.log10(n)) - 1)
    return math.ceil(n / unit) * unit
