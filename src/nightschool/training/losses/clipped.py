"""Policy gradients that a ratio to the sampler's policy may stretch only so far: PPO's, GRPO's and its relatives'."""

from __future__ import annotations

import torch
from torch import Tensor

from nightschool.objectives.clipping import BEHAVIOR, CLIP, NO_PENALTY, Clip, Penalty, Ratio
from nightschool.objectives.loss import Aggregation
from nightschool.training.losses.batch import MOST, TokenBatch
from nightschool.training.losses.surrogates import SURROGATES


def clipped(
    batch: TokenBatch,
    clip: Clip = CLIP,
    penalty: Penalty = NO_PENALTY,
    weighted: bool = False,
    aggregation: Aggregation = Aggregation.TOKEN_MEAN,
    max_length: float | None = None,
) -> Tensor:
    """-(surrogate) * importance weight + penalty, reduced. See `objectives.clipping` for the settings.

    Reads `advantage` per token, or else per sequence; log-probabilities named by the settings; `importance_weight` per
    token where `weighted`, a constant that the penalty does not get.

    Implements: `losses.surrogates`; DeepSeek-V3.2's mask of far failures and corrected k3, as summarized.
    """
    advantage = batch.tokens["advantage"] if "advantage" in batch.tokens else batch.noted("advantage")[batch.rows]
    losses = -SURROGATES[clip.surrogate](batch, clip, advantage)
    if clip.divergence is not None:
        gap = batch.sums(batch.given(BEHAVIOR) - batch.logprobs.detach()) / batch.lengths()
        losses = torch.where((advantage < 0) & (gap > clip.divergence)[batch.rows], 0.0, losses)
    if weighted:
        losses = losses * batch.given("importance_weight")
    if penalty.weight:
        kl = k3(batch.logprobs, batch.given(penalty.against))
        if penalty.corrected:
            kl = kl * batch.ratios(clip.against, clip.ratio == Ratio.SEQUENCE)
        losses = losses + penalty.weight * kl
    return batch.reduced(losses, aggregation, max_length)


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """e^d - d - 1 with d = reference - policy: unbiased for KL(policy || reference) on the policy's own tokens."""
    difference = (reference - logprobs).clamp(-MOST, MOST)
    return difference.exp() - difference - 1
