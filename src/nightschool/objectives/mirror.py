"""Mirror descent on groups: the mean reward in place of the value, as a squared log-ratio or to first order.

`MIRROR` is the squared form: its gradient is (r - mean r) grad log pi - (tau / 2) grad LR^2. `OPMD` keeps the first
term alone, divided by 1 + tau: no ratio, no anchor, only small steps hold the policy.

Implements: Kimi team, arXiv:2501.12599, section 2.3 (squared; unverified); OPMD as in Trinity-RFT's code.
Departs: the squared form is divided by 2 * tau; its published residual is r - tau log Z - tau LR, with the group's
    log-mean-exp as tau log Z, which is `oapl_group` with beta1 = beta2 = tau.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from nightschool.objectives.legality import require_groups, require_one_version
from nightschool.objectives.loss import Aggregation, Loss, Material, Objective
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
class MirrorRule:
    """`tau`: the temperature."""

    tau: float = 0.1


@dataclass(frozen=True, slots=True)
class OpmdRule:
    """`tau`: the step is divided by 1 + tau. `soft`: the baseline is the group's log-mean-exp at tau, not its mean."""

    tau: float = 1.0
    soft: bool = False


def annotate(samples: Sequence[Sample], rule: MirrorRule | OpmdRule) -> list[Sample]:
    """Give each sample its group's baseline as `value`, and its `advantage` and `beta`.

    Raises:
        RefusedError: a group of one (its baseline would be its reward, or nothing at all), several versions in one
            buffer, no group, or a requirement of `objectives.legality` is broken.
    """
    require_judged(samples, calibrated=True)
    require_temperature(rule.tau)
    require_one_version(samples)
    soft = isinstance(rule, OpmdRule) and rule.soft
    values = {}
    for name, members in require_groups(samples).items():
        rewards = [reward_of(sample) for sample in members]
        values[name] = log_mean_exp(rewards, rule.tau) if soft else fmean(rewards)
    return [regressed(sample, values[str(sample.group_id)], rule.tau) for sample in samples]


def squared(rule: MirrorRule) -> Loss:  # the rule is in the annotations
    return SQUARED


def first_order(rule: OpmdRule) -> Loss:
    return Loss("reinforce", {"aggregation": Aggregation.SEQUENCE_SUM}, 1 / (1 + rule.tau))


MIRROR = Objective("mirror", MirrorRule, annotate, squared, anchored=True, material=Material.GROUPS, one_version=True)
OPMD = Objective("opmd", OpmdRule, annotate, first_order, material=Material.GROUPS, one_version=True)
