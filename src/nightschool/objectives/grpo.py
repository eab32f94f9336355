"""GRPO: rollouts of one task are compared with each other; `objectives.family` holds it and its relatives as published.

Implements: Shao et al., arXiv:2402.03300, with what its relatives change as settings.
Departs: the batch of `Scale.BATCH` is the buffer. Groups of equal rewards are left out, not refilled: that is the
    sampler's work. The KL penalty is to the window's anchor, unless `penalty` names another reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nightschool.errors import TooLittleDataError
from nightschool.objectives.advantages import Baseline, Scale, compared
from nightschool.objectives.clipping import CLIP, NO_PENALTY, Clip, Penalty
from nightschool.objectives.legality import require_no_anchor, require_tokens
from nightschool.objectives.loss import Aggregation, Anchored, Loss
from nightschool.objectives.off_policy import ORIGIN, UNCORRECTED, Correction, require_correction, weigh
from nightschool.objectives.rollouts import ANY_LENGTH, Overlong, comparable, require_numbers, shaped
from nightschool.types import Sample


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
    overlong: Overlong = ANY_LENGTH
    clip: Clip = CLIP
    penalty: Penalty = NO_PENALTY
    correction: Correction = UNCORRECTED
    aggregation: Aggregation = Aggregation.SEQUENCE_MEAN
    max_length: float | None = None
    kl_weight: float = 0.0


def annotate(samples: Sequence[Sample], rule: GrpoRule) -> list[Sample]:
    """Give each sample the `advantage` of its reward in its group. Rewards may lie anywhere.

    Raises:
        RefusedError: a group of one, no group, no reward, or a requirement of `legality` or `off_policy` is broken.
        TooLittleDataError: no group is left.
    """
    groups = comparable(samples)
    whole = [sample for members in groups for sample in members]
    require_tokens(whole)
    require_no_anchor(whole)
    require_correction(whole, rule.correction, rule.clip)
    require_numbers(whole)
    rewards_P_G = [[shaped(sample, rule.overlong, rule.kl_weight) for sample in members] for members in groups]
    advantages_P_G = compared(rewards_P_G, rule.baseline, rule.scale, rule.ddof, rule.epsilon)
    found: list[Sample] = []
    for members, rewards, advantages in zip(groups, rewards_P_G, advantages_P_G, strict=True):
        if rule.drop_equal and min(rewards) == max(rewards):
            continue
        for sample, advantage in zip(members, advantages, strict=True):
            if not rule.overlong.leaves_out(sample):
                found.append(replace(sample, annotations={**sample.annotations, "advantage": advantage}))
    if not found:
        raise TooLittleDataError("There is nothing to study.", "No group tells good from bad.", "Draw other tasks.")
    return found


def after_anchor(samples: Sequence[Sample], rule: GrpoRule) -> Anchored:
    return weigh(samples, rule.correction)


def loss(rule: GrpoRule) -> Loss:
    settings = {"clip": rule.clip, "penalty": rule.penalty, "weighted": rule.correction.weighs}
    scored = frozenset({ORIGIN} if rule.kl_weight or rule.penalty.against == ORIGIN else ())
    return Loss("clipped", {**settings, "aggregation": rule.aggregation, "max_length": rule.max_length}, scored=scored)
