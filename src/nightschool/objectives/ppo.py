"""PPO with a critic: the only classical objective that is native to one rollout per task.

Implements: Schulman et al., arXiv:1707.06347, with generalized advantages (arXiv:1506.02438).
Departs: a critic's values and the advantages are fixed for a window, as old policy and values are for one batch of
    rollouts; the batch that whitens is the buffer. KL to a fixed reference is in the rewards, as k1, where rows bring
    `origin_logprobs`; where a truncated trajectory ends, says `rollouts.ended`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nightschool.objectives.advantages import generalized, whitened
from nightschool.objectives.clipping import DUAL_CLIP, Clip
from nightschool.objectives.legality import refused
from nightschool.objectives.loss import LOGPROBS, VALUES, Aggregation, Anchored, Loss, Objective
from nightschool.objectives.off_policy import ORIGIN, UNCORRECTED, Correction, noted, require_correction, weigh
from nightschool.objectives.rollouts import ended, require_trajectories, rewards_T
from nightschool.types import Sample

FEWEST = 3  # sequences that are whitened together: of one or two it makes signs, whatever they are worth


@dataclass(frozen=True, slots=True)
class PpoRule:
    """`gamma` discounts, `trace_decay` is the lambda of the advantages: below 1 a fresh critic makes a long reply's
    reward decay to nothing. `kl_weight`: of k1(behavior || origin) in the rewards. `whiten`: advantages of the buffer
    get mean 0 and deviation 1, `ddof` that of the deviation. `value_weight` and `value_clip` are the critic's."""

    gamma: float = 1.0
    trace_decay: float = 1.0
    kl_weight: float = 0.0
    whiten: bool = True
    ddof: int = 1
    clip: Clip = DUAL_CLIP
    correction: Correction = UNCORRECTED
    value_weight: float = 0.5
    value_clip: float | None = 0.2
    aggregation: Aggregation = Aggregation.TOKEN_MEAN


def annotate(samples: Sequence[Sample], rule: PpoRule) -> list[Sample]:
    """Check what the advantages will need; a critic's values come with the anchor.

    Raises:
        RefusedError: no reward, too few rows to whiten, or a requirement of `legality` or `off_policy` is broken.
    """
    require_trajectories(samples, rule.kl_weight)
    require_correction(samples, rule.correction, rule.clip)
    if rule.whiten and len(samples) < FEWEST:
        raise refused("whitening takes three sequences", f"There are {len(samples)}.", "Set whiten to false.")
    return list(samples)


def after_anchor(samples: Sequence[Sample], rule: PpoRule) -> Anchored:
    """Give each loss token its `advantage`, `return` and, where staleness is corrected, `importance_weight`; figures
    are those of `off_policy.weigh`, and `explained_variance`, the share of the returns' that the critic knew."""
    weighed = weigh(samples, rule.correction)
    rows, advantages, returns = zip(*(_estimated(sample, rule) for sample in weighed.samples), strict=True)
    total, left = np.var(np.concatenate(returns)), np.var(np.concatenate(advantages))
    figures = {**weighed.figures, "explained_variance": float(1 - left / total) if total else 1.0}
    if rule.whiten:
        advantages = whitened(advantages, rule.ddof)
    triples = zip(rows, advantages, returns, strict=True)
    return Anchored([noted(noted(row, "advantage", a), "return", r) for row, a, r in triples], figures)


def loss(rule: PpoRule) -> Loss:
    critic = {"value_weight": rule.value_weight, "value_clip": rule.value_clip}
    settings = {"clip": rule.clip, "weighted": rule.correction.weighs, "aggregation": rule.aggregation, **critic}
    scored = frozenset({ORIGIN} if rule.kl_weight else ())
    return Loss("ppo", settings, outputs=frozenset({LOGPROBS, VALUES}), scored=scored)


PPO = Objective("ppo", PpoRule, annotate, loss, anchored=True, weighs_behavior=True, after_anchor=after_anchor)


def _estimated(sample: Sample, rule: PpoRule) -> tuple[Sample, np.ndarray, np.ndarray]:
    """The sample as it trains, its advantages, and the returns its critic learns."""
    sample, values, after = ended(sample)
    advantage = generalized(rewards_T(sample, rule.kl_weight), values, after, rule.gamma, rule.trace_decay)
    return sample, advantage, advantage + values
