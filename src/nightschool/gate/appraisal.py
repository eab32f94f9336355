"""How good an adapter is on written rows that no run saw: one number for each material, with its interval.

A row's gain is what its tokens gained in log-probability over the bare base, so that numbers of different adapters
compare. It orders the stages of a run; it promotes nothing, which takes an exam.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from nightschool.errors import TooLittleDataError
from nightschool.gate.statistics import paired, wilson
from nightschool.objectives.loss import Material
from nightschool.types import Sample

ALPHA = 0.025  # on each side
RESAMPLES = 2000
UNITS = {
    Material.DEMONSTRATIONS: "nats per token gained",
    Material.PAIRS: "pairs ranked right, %",
    Material.JUDGED: "good above bad, %",
}

Scores = Sequence[Sequence[float | None]]


@dataclass(frozen=True, slots=True)
class Score:
    """`value` with its 95 % interval over `num_rows` rows, or pairs; more is better. The unit is in `UNITS`: nats per
    token that demonstrations gained; the share of pairs whose better reply gained more; of judged replies, the chance
    that a good one gained more than a bad one."""

    value: float
    low: float
    high: float
    num_rows: int


def appraise(material: Material, samples: Sequence[Sample], policy: Scores, base: Scores) -> Score:
    """The score of rows of one material from their log-probabilities under an adapter and the bare base.

    Raises:
        TooLittleDataError: one row, or only good or only bad ones.
    """
    gains = [
        [now - then for now, then in zip(row, before, strict=True) if now is not None and then is not None]
        for row, before in zip(policy, base, strict=True)
    ]
    if material == Material.DEMONSTRATIONS:
        found = paired([fmean(row) for row in gains], ALPHA)
        return Score(found.difference, found.low, found.high, found.num_clusters)
    totals = [sum(row) for row in gains]
    if material == Material.PAIRS:
        return _ranked(samples, totals)
    good = np.array([total for sample, total in zip(samples, totals, strict=True) if (sample.reward or 0.0) > 0.5])
    bad = np.array([total for sample, total in zip(samples, totals, strict=True) if (sample.reward or 0.0) <= 0.5])
    return _separated(good, bad)


def _ranked(samples: Sequence[Sample], totals: Sequence[float]) -> Score:
    """A tie counts one half."""
    pairs: dict[str | None, dict[bool, float]] = defaultdict(dict)
    for sample, total in zip(samples, totals, strict=True):
        pairs[sample.group_id][sample.annotations["preferred"] > 0] = total
    wins = sum(0.5 * (pair[True] >= pair[False]) + 0.5 * (pair[True] > pair[False]) for pair in pairs.values())
    low, high = wilson(wins, len(pairs), ALPHA)
    return Score(100 * wins / len(pairs), 100 * low, 100 * high, len(pairs))


def _separated(good: np.ndarray, bad: np.ndarray) -> Score:
    """The area under the ROC curve, with a percentile bootstrap over the rows of each class; the draws are fixed."""
    if not len(good) or not len(bad):
        raise TooLittleDataError(
            "Held-out replies of one kind tell nothing apart.", f"{len(good)} are good, {len(bad)} bad.", "Write more."
        )
    random = np.random.default_rng(0)
    drawn = [_area(random.choice(good, len(good)), random.choice(bad, len(bad))) for _ in range(RESAMPLES)]
    low, high = np.quantile(drawn, [ALPHA, 1 - ALPHA])
    return Score(100 * _area(good, bad), 100 * float(low), 100 * float(high), len(good) + len(bad))


def _area(good: np.ndarray, bad: np.ndarray) -> float:
    above, equal = good[:, None] > bad[None, :], good[:, None] == bad[None, :]
    return float(above.mean() + 0.5 * equal.mean())
