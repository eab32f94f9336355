"""Advantages as numbers: of the rewards of a group, of the values along a trajectory. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import numpy as np


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
