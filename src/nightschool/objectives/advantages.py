"""Advantages as numbers: of the rewards of a group, of the values along a trajectory. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from statistics import fmean

import numpy as np

from nightschool.objectives.legality import refused


class Baseline(StrEnum):
    """The group's mean reward, or the mean of the others in it."""

    MEAN = "mean"
    OTHERS = "others"


class Scale(StrEnum):
    """The deviation an advantage is divided by: its group's, all rewards', none (as for noisy judges)."""

    GROUP = "group"
    BATCH = "batch"
    NONE = "none"


def compared(
    rewards_P_G: Sequence[Sequence[float]], baseline: Baseline, scale: Scale, ddof: int, epsilon: float
) -> list[list[float]]:
    """The advantage of each reward over its group's baseline, in units of a deviation to which `epsilon` is added."""
    whole = deviation([r for rewards in rewards_P_G for r in rewards], ddof) if scale == Scale.BATCH else 0.0
    found = []
    for rewards in rewards_P_G:
        mean, size = fmean(rewards), len(rewards)
        factor = size / (size - 1) if baseline == Baseline.OTHERS else 1.0
        if scale != Scale.NONE:
            factor /= (whole if scale == Scale.BATCH else deviation(rewards, ddof)) + epsilon
        found.append([factor * (reward - mean) for reward in rewards])
    return found


def deviation(rewards: Sequence[float], ddof: int) -> float:
    """sqrt(sum of squares / (G - ddof)): libraries take ddof 1, which needs two rewards; some texts take 0."""
    mean = fmean(rewards)
    return math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - ddof))


def generalized(rewards: np.ndarray, values: np.ndarray, after: float, gamma: float, trace_decay: float) -> np.ndarray:
    """delta_t = r_t + gamma V_(t+1) - V_t; A_t = delta_t + gamma * trace_decay * A_(t+1).

    `after` is the value of the state behind the last token. What lies between the tokens (a tool's words) has no value
    and takes no time.

    Implements: Schulman et al., arXiv:1506.02438, Eq. 16. Shapes: all (T,).
    """
    out, following, advantage = np.zeros(len(rewards)), after, 0.0
    for place in reversed(range(len(rewards))):
        delta = rewards[place] + gamma * following - values[place]
        advantage = delta + gamma * trace_decay * advantage
        out[place], following = advantage, values[place]
    return out


def whitened(advantages: Sequence[np.ndarray], ddof: int) -> list[np.ndarray]:
    """The same with mean 0 and deviation 1 over all tokens of all trajectories."""
    flat = np.concatenate(advantages)
    spread = math.sqrt(float(np.var(flat, ddof=ddof)) + 1e-8)
    return [(one - flat.mean()) / spread for one in advantages]


def standardized(raw: Sequence[float], counts: Sequence[float], freedom: float) -> list[float]:
    """Advantages less their mean, over their deviation; `freedom` is what the sum of squares is divided by.

    Raises: RefusedError: they do not differ, or there is only one.
    """
    mean = sum(c * a for c, a in zip(counts, raw, strict=True)) / sum(counts)
    squares = sum(c * (a - mean) ** 2 for c, a in zip(counts, raw, strict=True))
    if freedom <= 0 or squares <= 1e-12 * sum(counts):
        raise refused("whitening needs a spread", "all advantages are one", "Add rows.")
    return [(a - mean) / math.sqrt(squares / freedom) for a in raw]
