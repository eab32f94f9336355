"""OAPL as published: rollouts of one task, whose log-mean-exp of rewards is the value they share.

Implements: Ritter et al., arXiv:2602.19362, Eq. 2 and 3, by way of two readings of it (the paper's text is unverified).
Departs: the loss is divided by 2 * beta2, so that its gradient at the anchor is a policy gradient's at any beta2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nightschool.objectives.legality import require_groups, require_one_version
from nightschool.objectives.loss import Loss, Material, Objective
from nightschool.objectives.regression import (
    SQUARED,
    regressed,
    require_judged,
    require_temperature,
    reward_of,
)
from nightschool.types import Sample
from nightschool.valuation.soft_value import log_mean_exp


@dataclass(frozen=True, slots=True)
class OaplGroupRule:
    """`beta1`: temperature of the value; towards infinity it is the mean reward, towards 0 the best. `beta2`: that of
    the log-ratio. With beta1 above beta2 the targets lie out of reach: only the number of steps holds the policy.
    `anchor`: the version that log-ratios are measured against; unnamed, the one that drew all samples."""

    beta1: float = 1.0
    beta2: float = 1e-3
    anchor: str | None = None


def annotate(samples: Sequence[Sample], rule: OaplGroupRule) -> list[Sample]:
    """Give each sample its group's `value`, its `advantage` and `beta`.

    A group's rewards estimate the value of the policy that drew them, which has to be the anchor.

    Raises:
        RefusedError: a group of one, a sample of another version than the anchor, no group, or a requirement of
            `objectives.legality` is broken.
    """
    require_judged(samples, calibrated=True)
    require_temperature(rule.beta1, rule.beta2)
    groups = require_groups(samples)
    require_one_version(samples, rule.anchor)
    values = {name: _value(members, rule.beta1) for name, members in groups.items()}
    return [regressed(sample, values[str(sample.group_id)], rule.beta2) for sample in samples]


def _value(members: Sequence[Sample], beta: float) -> float:
    """A rollout counts by the confidence in its label, as it does in the loss."""
    return log_mean_exp([reward_of(s) for s in members], beta, [s.weight for s in members])


def loss(rule: OaplGroupRule) -> Loss:  # the rule is in the annotations
    return SQUARED


OAPL_GROUP = Objective(
    "oapl_group", OaplGroupRule, annotate, loss, anchored=True, material=Material.GROUPS, one_version=True
)
