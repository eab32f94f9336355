"""DRO: regress the policy's log-ratio to its reference on reward minus value, one reply per request.

Implements: Richemond et al., arXiv:2405.19107, the policy's half of the loss.
Departs: divided by tau, so that the gradient at the reference is a policy gradient's at any tau. The value is not
    learned along, where it would absorb whatever the policy cannot fit: it is the one that the joint optimum has,
    tau * log E[exp(r / tau)], in closed form for success or failure from the success model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nightschool.objectives.loss import Loss, Material, Objective
from nightschool.objectives.regression import (
    SQUARED,
    estimate_of,
    regressed,
    require_judged,
    require_temperature,
)
from nightschool.types import Sample
from nightschool.valuation.soft_value import closed_form


@dataclass(frozen=True, slots=True)
class DroRule:
    """`tau`: temperature in units of reward; 1 is usual for rewards of spread 1 (unverified), and rewards in [0, 1]
    have half of that. `calibrated`: rewards between 0 and 1 are calibrated probabilities of success."""

    tau: float = 0.5
    calibrated: bool = False


def annotate(samples: Sequence[Sample], rule: DroRule) -> list[Sample]:
    """Give each sample its `value`, `advantage` and `beta`, from its `p_hat`, which it did not inform itself.

    Raises:
        RefusedError: a requirement of `objectives.legality` is broken, or an estimate is missing.
    """
    require_judged(samples, rule.calibrated)
    require_temperature(rule.tau)
    return [regressed(sample, closed_form(estimate_of(sample), rule.tau), rule.tau) for sample in samples]


def loss(rule: DroRule) -> Loss:  # the rule is in the annotations
    return SQUARED


DRO = Objective("dro", DroRule, annotate, loss, anchored=True, material=Material.TEXTS, valued=True)
