"""OAPL of single rollouts: regress the policy's log-ratio to its anchor on the advantage, off-policy, without ratios.

For one-off production sessions, which nobody replays: the value V of A = r - V comes from a calibrated success model,
on the pessimistic side, since an overestimated value would drain probability from every reply in the log.

Implements: Ritter et al., arXiv:2602.19362, Eq. 3, by way of two readings of it (the paper's text is unverified).
Departs: one temperature, V = min(p_lo, p_hat - margin * beta) in place of a group's value, and a floor for failures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nightschool.objectives.loss import Loss, Objective
from nightschool.objectives.regression import SQUARED, estimate_of, regressed, require_judged, require_temperature
from nightschool.types import Sample


@dataclass(frozen=True, slots=True)
class OaplRule:
    """`beta`: temperature; 0.5 for an agent's first study, 0.25 later. `margin`: pessimism c in units of beta. `floor`:
    nats; a failure whose log-ratio fell below it is pushed no further down. `calibrated`: rewards between 0 and 1 are
    calibrated probabilities of success."""

    beta: float = 0.25
    margin: float = 1.0
    floor: float = -3.0
    calibrated: bool = False


def value(p_hat: float, p_lo: float, beta: float, margin: float) -> float:
    """The anchor's pessimistic value at one request.

    Edge: never below 0, the lowest reward: a failure is never reinforced, however hard the request.
    """
    return max(0.0, min(p_lo, p_hat - margin * beta))


def annotate(samples: Sequence[Sample], rule: OaplRule) -> list[Sample]:
    """Give each sample its `value`, `advantage`, `beta` and `floor`.

    Samples carry `p_hat` and `p_lo` of the anchor's success on their request, which they did not inform themselves, and
    may carry a smaller `margin` that their success model has earned (`valuation.reliability.earned_margin`).

    Raises:
        RefusedError: a requirement of `objectives.legality` is broken, or an estimate is missing.
    """
    require_judged(samples, rule.calibrated)
    require_temperature(rule.beta)
    found = []
    for sample in samples:
        margin = min(rule.margin, sample.annotations.get("margin", rule.margin))
        expected = value(estimate_of(sample), estimate_of(sample, "p_lo"), rule.beta, margin)
        found.append(regressed(sample, expected, rule.beta, rule.floor))
    return found


def annotate_rehearsal(samples: Sequence[Sample], rule: OaplRule, weight: float) -> list[Sample]:
    """Give samples of general conversation an advantage of zero: the loss pulls their log-ratio back to zero.

    What an agent hears about its own trade says nothing of everything else it knows; a low-rank update moves
    that along, all the same. Rehearsed beside the feedback, it stays where the anchor had it.
    """
    notes = {"value": 0.0, "advantage": 0.0, "beta": rule.beta, "floor": rule.floor}
    return [replace(sample, weight=weight, annotations={**sample.annotations, **notes}) for sample in samples]


def loss(rule: OaplRule) -> Loss:  # the rule is in the annotations
    return SQUARED


OAPL = Objective("oapl", OaplRule, annotate, loss, anchored=True, valued=True, pessimistic=True)
