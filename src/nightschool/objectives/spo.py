"""SPO: single rollouts against a tracked success rate, whitened over the buffer, with PPO's clip.

`spo` whitens one advantage a trajectory. A token-mean loss consumes each as often as it has tokens: `spo_plus` centers
and scales them under that measure, so that what enters the loss has mean zero.

Implements: SPO, arXiv:2509.13232 (code read; unverified against the paper); SPO++, arXiv:2608.24870 (abstract).
Departs: whitened over the buffer, not over each batch of it. The value is any estimate that a row did not inform
    (`valuation.tracker.follow` for prompts that recur), at the time of its rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from nightschool.objectives.advantages import standardized
from nightschool.objectives.clipping import CLIP, Clip
from nightschool.objectives.loss import Aggregation, Loss, Objective
from nightschool.objectives.regression import estimate_of, require_judged, reward_of
from nightschool.types import Sample


class Measure(StrEnum):
    """What a mean over advantages counts: trajectories, or the loss tokens of each by its weight."""

    TRAJECTORY = "trajectory"
    TOKEN = "token"


@dataclass(frozen=True, slots=True)
class SpoRule:
    """`measure`: what whitening counts. `calibrated`: rewards between 0 and 1 are calibrated probabilities of success.
    `max_length`: the constant of `Aggregation.CONSTANT`."""

    measure: Measure = Measure.TRAJECTORY
    clip: Clip = CLIP
    aggregation: Aggregation = Aggregation.TOKEN_MEAN
    max_length: float | None = None
    calibrated: bool = False


def annotate(samples: Sequence[Sample], rule: SpoRule) -> list[Sample]:
    """Give each sample its whitened `advantage`. Samples carry `p_hat`, the value before their own outcome.

    Raises:
        RefusedError: a requirement of `objectives.legality` is broken, an estimate is missing, or all advantages are
            one.
    """
    require_judged(samples, rule.calibrated)
    raw = [reward_of(sample) - estimate_of(sample) for sample in samples]
    if rule.measure == Measure.TOKEN:
        counts = [sample.weight * sum(sample.loss_mask) for sample in samples]
        advantages = standardized(raw, counts, sum(counts))
    else:
        advantages = standardized(raw, [1.0] * len(raw), len(raw) - 1)
    return [
        replace(sample, annotations={**sample.annotations, "advantage": advantage})
        for sample, advantage in zip(samples, advantages, strict=True)
    ]


def loss(rule: SpoRule) -> Loss:
    return Loss("clipped", {"clip": rule.clip, "aggregation": rule.aggregation, "max_length": rule.max_length})


SPO = Objective("spo", SpoRule, annotate, loss, anchored=True, valued=True)
SPO_PLUS = Objective("spo_plus", partial(replace, SpoRule(Measure.TOKEN)), annotate, loss, anchored=True, valued=True)
