"""Does a reader judge replies of the policy that serves as it judged earlier ones?

A policy learns to please whoever judges it. So what counts is the gap between reader and people on its own replies: the
mean of the probability less the label. Where the gap has moved by surely more than `TOLERATED` since earlier versions,
the reader gives no rewards until people have labelled more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

TOLERATED = 0.05
LEAST_ROWS, LEAST_PEOPLE = 20, 5  # on either side
Z_95 = 1.959963984540054


class State(StrEnum):
    STEADY = "steady"
    ALARM = "alarm"
    TOO_LITTLE = "not enough labels"


@dataclass(frozen=True, slots=True)
class Drift:
    """`now` and `before` are mean gaps, `moved` their difference with its 95 % interval; `None` where there is too
    little of either."""

    state: State
    rows_now: int
    rows_before: int
    now: float | None = None
    before: float | None = None
    moved: float | None = None
    low: float | None = None
    high: float | None = None


def drift_of(off: np.ndarray, people: Sequence[str], is_now: Sequence[bool]) -> Drift:
    """The drift of gaps (N,), predicted less labelled, of which those of one person depend on each other."""
    now = np.asarray(is_now, dtype=bool)
    names = np.asarray(people)
    sides = [(off[side], names[side]) for side in (now, ~now)]
    rows_now, rows_before = (len(gaps) for gaps, _ in sides)
    if min(rows_now, rows_before) < LEAST_ROWS or min(len(set(who.tolist())) for _, who in sides) < LEAST_PEOPLE:
        return Drift(State.TOO_LITTLE, rows_now, rows_before)
    (first, one), (second, other) = (_mean(gaps, who) for gaps, who in sides)
    moved, reach = first - second, Z_95 * float(np.hypot(one, other))
    low, high = moved - reach, moved + reach
    state = State.ALARM if low > TOLERATED or high < -TOLERATED else State.STEADY
    return Drift(state, rows_now, rows_before, first, second, moved, low, high)


def _mean(gaps: np.ndarray, who: np.ndarray) -> tuple[float, float]:
    """The mean and its standard error: that of means without each person in turn, so that one who says most of it makes
    the error wide."""
    places = np.unique(who, return_inverse=True)[1]
    without = (gaps.sum() - np.bincount(places, gaps)) / (len(gaps) - np.bincount(places))
    spread = without - without.mean()
    return float(gaps.mean()), float(np.sqrt(spread @ spread * (len(without) - 1) / len(without)))
