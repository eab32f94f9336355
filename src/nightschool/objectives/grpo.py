"""GRPO and its family: rollouts of one task compared with each other, a clipped loss.

A member is a setting of `GrpoRule`; `VARIANTS` holds each as published.

Implements: Shao et al., arXiv:2402.03300 (grpo); Yu et al., arXiv:2503.14476 (dapo); Liu et al., arXiv:2503.20783
    (dr_grpo); Ahmadian et al., arXiv:2402.14740 (rloo); Zheng et al., arXiv:2507.18071 (gspo); MiniMax,
    arXiv:2506.13585 (cispo); Gao et al., arXiv:2511.20347 (sapo); Liu et al., arXiv:2508.08221 (lite_ppo); VESPO,
    arXiv:2602.10693 (vespo; its constants are read from an implementation). KL weights are unverified.
Departs: the batch of `Scale.BATCH` is the buffer. Groups of equal rewards are left out, not refilled: that is the
    sampler's work. The KL penalty is to the window's anchor, unless `penalty` names another reference. Ratios of
    whole sequences are geometric means; TRL's rloo takes their product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from statistics import fmean

from nightschool.errors import RefusedError, TooLittleDataError
from nightschool.objectives.advantages import deviation
from nightschool.objectives.clipping import BEHAVIOR, CLIP, NO_PENALTY, Clip, Penalty, Ratio, Surrogate
from nightschool.objectives.legality import require_groups, require_no_anchor, require_tokens
from nightschool.objectives.loss import Aggregation, Anchored, Loss, Material, Objective
from nightschool.objectives.off_policy import (
    CORRECTIONS,
    UNCORRECTED,
    Correction,
    Weighing,
    behavior_kl,
    require_correction,
    weigh,
)
from nightschool.types import Sample

FAILED, TRUNCATED = "infrastructure_failure", "truncated"


class Baseline(StrEnum):
    """The group's mean reward, or the mean of the others in it."""

    MEAN = "mean"
    OTHERS = "others"


class Scale(StrEnum):
    """The deviation an advantage is divided by: its group's, all rewards', none (as for noisy judges)."""

    GROUP = "group"
    BATCH = "batch"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Overlong:
    """`leave_out`: rows annotated `truncated` train nothing, while their reward counts in the group. Where `cache` is
    above 0, a reply's reward loses 0 at `max_length` - `cache` tokens, rising to 1 at `max_length` and beyond."""

    leave_out: bool = False
    max_length: int = 0
    cache: int = 0


@dataclass(frozen=True, slots=True)
class GrpoRule:
    """`ddof` of the deviation that `epsilon` is added to. `drop_equal`: groups whose rewards are all the same are left
    out. `max_length`: the constant of `Aggregation.CONSTANT`. `kl_weight`: of a reply's summed log(behavior / origin),
    which its reward loses before it is compared (`off_policy.behavior_kl`)."""

    baseline: Baseline = Baseline.MEAN
    scale: Scale = Scale.GROUP
    ddof: int = 1
    epsilon: float = 1e-6
    drop_equal: bool = False
    overlong: Overlong = Overlong()
    clip: Clip = CLIP
    penalty: Penalty = NO_PENALTY
    correction: Correction = UNCORRECTED
    aggregation: Aggregation = Aggregation.SEQUENCE_MEAN
    max_length: float | None = None
    kl_weight: float = 0.0


TOKENS, SEQUENCES = Aggregation.TOKEN_MEAN, Aggregation.SEQUENCE_MEAN
VARIANTS = {
    "grpo": GrpoRule(penalty=Penalty(0.04)),
    "dapo": GrpoRule(
        clip=Clip(0.2, 0.28), aggregation=TOKENS, drop_equal=True, overlong=Overlong(max_length=20_480, cache=4096)
    ),
    "dr_grpo": GrpoRule(scale=Scale.NONE, aggregation=Aggregation.CONSTANT, max_length=3000),
    "rloo": GrpoRule(Baseline.OTHERS, Scale.NONE, aggregation=Aggregation.SEQUENCE_SUM),
    "gspo": GrpoRule(clip=Clip(3e-4, 4e-4, Ratio.SEQUENCE)),
    "cispo": GrpoRule(clip=Clip(surrogate=Surrogate.CAPPED), aggregation=TOKENS),
    "sapo": GrpoRule(clip=Clip(surrogate=Surrogate.SOFT)),
    "lite_ppo": GrpoRule(scale=Scale.BATCH, aggregation=TOKENS),
    "vespo": GrpoRule(clip=Clip(surrogate=Surrogate.GAMMA, against=BEHAVIOR), aggregation=TOKENS),
    "rloo_tis": GrpoRule(
        Baseline.OTHERS, Scale.NONE, drop_equal=True, clip=Clip(0.2, 0.28), aggregation=TOKENS,
        correction=CORRECTIONS["tis-token"],
    ),
}  # fmt: skip


def annotate(samples: Sequence[Sample], rule: GrpoRule) -> list[Sample]:
    """Give each sample the `advantage` of its reward in its group. Rewards may lie anywhere.

    Rows annotated `infrastructure_failure` are in neither mean nor deviation nor loss; a group that they leave with one
    rollout is left out.

    Raises:
        RefusedError: a group of one, no group, no reward, or a requirement of `legality` or `off_policy` is broken.
        TooLittleDataError: no group is left.
    """
    drawn = require_groups(samples)
    groups = [[one for one in members if not one.annotations.get(FAILED)] for members in drawn.values()]
    whole = [sample for members in groups for sample in members]
    require_tokens(whole)
    require_no_anchor(whole)
    require_correction(whole, rule.correction, rule.clip)
    rewards = [[shaped(sample, rule) for sample in members] for members in groups if len(members) > 1]
    spread = deviation([r for row in rewards for r in row], rule.ddof) if rule.scale == Scale.BATCH else None
    found: list[Sample] = []
    for members, row in zip([m for m in groups if len(m) > 1], rewards, strict=True):
        if rule.drop_equal and min(row) == max(row):
            continue
        for sample, advantage in zip(members, advantages(row, rule, spread), strict=True):
            if not (rule.overlong.leave_out and sample.annotations.get(TRUNCATED)):
                found.append(replace(sample, annotations={**sample.annotations, "advantage": advantage}))
    if not found:
        raise TooLittleDataError("There is nothing to study.", "No group tells good from bad.", "Draw other tasks.")
    return found


def advantages(rewards: Sequence[float], rule: GrpoRule, spread: float | None = None) -> list[float]:
    """Of one group, in units of `spread`, if given, instead of its own deviation."""
    mean, size = fmean(rewards), len(rewards)
    centered = [reward - mean for reward in rewards]
    if rule.baseline == Baseline.OTHERS:
        centered = [size / (size - 1) * one for one in centered]
    if rule.scale == Scale.NONE:
        return centered
    return [one / ((deviation(rewards, rule.ddof) if spread is None else spread) + rule.epsilon) for one in centered]


def shaped(sample: Sample, rule: GrpoRule) -> float:
    """The reward, less what length and distance cost. Raises: RefusedError when there is none."""
    if sample.reward is None or not math.isfinite(sample.reward):
        raise RefusedError("The run is refused: a missing reward is no number.", f"Sample {sample.id}.", "Judge it.")
    limit, cache = rule.overlong.max_length, rule.overlong.cache
    length = min(max((sum(sample.completion_mask) - limit + cache) / cache, 0.0), 1.0) if cache else 0.0
    return sample.reward - length - (rule.kl_weight * float(behavior_kl(sample).sum()) if rule.kl_weight else 0.0)


def after_anchor(samples: Sequence[Sample], rule: GrpoRule) -> Anchored:
    return weigh(samples, rule.correction)


def loss(rule: GrpoRule) -> Loss:
    weighted = rule.correction.weighing != Weighing.NONE
    settings = {"clip": rule.clip, "penalty": rule.penalty, "weighted": weighted}
    return Loss("clipped", {**settings, "aggregation": rule.aggregation, "max_length": rule.max_length})


NEEDS = {"anchored": True, "material": Material.GROUPS, "weighs_behavior": True, "after_anchor": after_anchor}
FAMILY = [Objective(name, partial(replace, rule), annotate, loss, **NEEDS) for name, rule in VARIANTS.items()]
