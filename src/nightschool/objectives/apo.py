"""A*PO: the squared regression against a fixed reference, with a value that was estimated once, before training.

Implements: Brantley et al., arXiv:2505.20686 (abstract and documentation read, formulas reconstructed; unverified).
Departs: divided by 2 * beta2, as all squared log-ratios here. Published for replies that the policy itself samples;
    the identity it regresses holds for any sampler, as long as the value is the reference's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nightschool.errors import TooLittleDataError
from nightschool.objectives.loss import Loss, Objective
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
class ApoRule:
    """`beta1`, `beta2`: temperatures of the value and of the log-ratio. `calibrated`: rewards between 0 and 1 are
    calibrated probabilities of success."""

    beta1: float = 0.5
    beta2: float = 1e-3
    calibrated: bool = False


def annotate(samples: Sequence[Sample], rule: ApoRule) -> list[Sample]:
    """Give each sample its `advantage` over the reference's value V* at beta1, and leave out what nobody solves.

    V* is the sample's `value` where it has one (log-mean-exp of offline rollouts' rewards, `valuation.moments`), else
    the closed form at `p_hat`: the reference's success rate among N offline rollouts, or a success model's estimate.

    Raises:
        RefusedError: a requirement of `objectives.legality` is broken, or neither note is there.
        TooLittleDataError: no request was solved at all.
    """
    require_judged(samples, rule.calibrated)
    require_temperature(rule.beta1, rule.beta2)
    found = []
    for sample in samples:
        best = sample.annotations.get("value")
        best = closed_form(estimate_of(sample), rule.beta1) if best is None else best
        if best > 0:
            found.append(regressed(sample, best, rule.beta2))
    if not found:
        raise TooLittleDataError(
            "There is nothing to study.", "The reference solved none of the requests.", "Collect easier ones."
        )
    return found


def loss(rule: ApoRule) -> Loss:  # the rule is in the annotations
    return SQUARED


APO = Objective("apo", ApoRule, annotate, loss, anchored=True, valued=True)
