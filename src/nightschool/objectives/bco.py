"""BCO: tell good replies from bad ones by their log-ratio, where each was heard on requests of its own.

Implements: Jung et al., arXiv:2404.04656: binary classifier objective, reward shift, underlying distribution matching.
Departs: the shift is the mean of the batch and not a running one, so a step depends on nothing before it. The
    density ratio of requests comes from the success model (words, cross-fitted, calibrated), not from embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nightschool.objectives.judged import balance, judge, told_balance
from nightschool.objectives.loss import Loss, Material, Objective
from nightschool.objectives.regression import estimate_of
from nightschool.types import Sample


@dataclass(frozen=True, slots=True)
class BcoRule:
    """`beta`: scale of the implicit reward. `matched`: weigh a bad reply by how much likelier a good one was on its
    request, within `low` and `high`. `undesirable_factor`: a factor on top; `None` balances the classes.
    `calibrated`: rewards between 0 and 1 are calibrated probabilities.
    """

    beta: float = 0.1
    matched: bool = True
    low: float = 0.5
    high: float = 10.0
    undesirable_factor: float | None = None
    calibrated: bool = False


def annotate(samples: Sequence[Sample], rule: BcoRule) -> list[Sample]:
    """Judge the rows; weigh the bad ones by P(good | request) / P(bad | request).

    A matched row is annotated `p_hat`, the success model's P(good | request); no row may have informed its own.

    Raises:
        RefusedError: see `objectives.judged`; or a row has no `p_hat`.
    """
    judged = judge(samples, rule.calibrated)
    if rule.matched:
        judged = [sample if sample.annotations["desirable"] else _matched(sample, rule) for sample in judged]
    return balance(judged, rule.undesirable_factor)


def loss(rule: BcoRule) -> Loss:
    return Loss("bco", {"beta": rule.beta})


BCO = Objective(
    "bco",
    BcoRule,
    annotate,
    loss,
    anchored=True,
    material=Material.TEXTS,
    valued=True,
    after_anchor=told_balance,
    batch_size=32,
)


def density_ratio(p_good: float, low: float, high: float) -> float:
    """P(good | request) / P(bad | request) within bounds; a request that never fails is at the upper one."""
    return high if p_good >= 1 else min(max(p_good / (1 - p_good), low), high)


def _matched(sample: Sample, rule: BcoRule) -> Sample:
    ratio = density_ratio(estimate_of(sample), rule.low, rule.high)
    return replace(sample, weight=sample.weight * ratio)
