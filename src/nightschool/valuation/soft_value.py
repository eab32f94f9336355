"""V* = beta log E exp(r / beta): what the best policy near an anchor is worth, and what finds it. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence


def log_mean_exp(rewards: Sequence[float], beta: float, weights: Sequence[float] | None = None) -> float:
    """beta * log(mean(exp(r / beta))), the value that rollouts of one task imply; the mean may be a weighted one."""
    top = max(rewards)
    counts = [1.0] * len(rewards) if weights is None else weights
    total = sum(w * math.exp((r - top) / beta) for r, w in zip(rewards, counts, strict=True))
    return top + beta * math.log(total / sum(counts))


def closed_form(p: float, beta: float, bounds: tuple[float, float] = (0.0, 1.0)) -> float:
    """The same of an infinite group that gets the upper bound with probability p, else the lower.

    With bounds 0 and 1 it is beta * log(1 + p (e^(1/beta) - 1)), written so that e^(1/beta) does not overflow.
    """
    low, high = bounds
    return low if p == 0 else high + beta * math.log(p + (1.0 - p) * math.exp((low - high) / beta))


def share_of(reward: float, beta: float, bounds: tuple[float, float] = (0.0, 1.0)) -> float:
    """A reward as a probability of the upper bound: the inverse of `closed_form`, linear in exp(r / beta).

    Its expectation is the probability whose closed form is V*: learning it is learning the exponential moment.
    """
    low, high = bounds
    least = math.exp((low - high) / beta)
    return (math.exp((reward - high) / beta) - least) / (1.0 - least)


def linex(reward: float, value: float, beta: float) -> float:
    """exp((r - V) / beta) - (r - V) / beta - 1, whose mean is least at V = V*."""
    gap = (reward - value) / beta
    return math.expm1(gap) - gap
