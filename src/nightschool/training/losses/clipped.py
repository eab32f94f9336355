"""Policy gradients that a ratio to the sampler's policy may stretch only so far: PPO's, GRPO's and its relatives'."""

from __future__ import annotations

import torch
from torch import Tensor

from nightschool.objectives.clipping import BEHAVIOR, CLIP, NO_PENALTY, Clip, Penalty, Ratio, Surrogate
from nightschool.objectives.loss import Aggregation
from nightschool.training.losses.batch import TokenBatch

MOST = 20.0  # nats: a ratio of e^20 and one beyond it are the same
SOFT_GOOD, SOFT_BAD = 1.0, 1.05  # temperatures, by the sign of the advantage
GAMMA_GOOD, GAMMA_BAD = (2.0, 3.0), (3.0, 2.0)  # k and lambda, likewise


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

    Implements: Schulman et al., arXiv:1707.06347, Eq. 7; Ye et al., arXiv:1912.09729 (dual clip); the gradient of
        arXiv:2507.18071 for sequence ratios, whose value is the sequence's at every token; arXiv:2506.13585 (CAPPED),
        arXiv:2511.20347 (SOFT), arXiv:2602.10693 (GAMMA); DeepSeek-V3.2's mask and corrected k3, as summarized.
    Edge: log-ratios beyond +-20 count as that, without gradient; so do sequence log-ratios of GAMMA.
    """
    advantage = batch.tokens["advantage"] if "advantage" in batch.tokens else batch.noted("advantage")[batch.rows]
    losses = -_gain(batch, clip, advantage)
    if clip.divergence is not None:
        gap = batch.sums(batch.given(BEHAVIOR) - batch.logprobs.detach()) / batch.lengths()
        losses = torch.where((advantage < 0) & (gap > clip.divergence)[batch.rows], 0.0, losses)
    if weighted:
        losses = losses * batch.given("importance_weight")
    if penalty.weight:
        kl = k3(batch.logprobs, batch.given(penalty.against))
        losses = losses + penalty.weight * (kl * _ratio(batch, clip) if penalty.corrected else kl)
    return batch.reduced(losses, aggregation, max_length)


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """e^d - d - 1 with d = reference - policy: unbiased for KL(policy || reference) on the policy's own tokens."""
    difference = (reference - logprobs).clamp(-MOST, MOST)
    return difference.exp() - difference - 1


def _gain(batch: TokenBatch, clip: Clip, advantage: Tensor) -> Tensor:
    """What is maximized, per token: (N,)."""
    if clip.surrogate == Surrogate.GAMMA:
        log_ratio = batch.log_ratios(clip.against).detach().clamp(-MOST, MOST)[batch.rows]
        (good_k, good_slope), (bad_k, bad_slope) = GAMMA_GOOD, GAMMA_BAD
        k = torch.where(advantage < 0, bad_k, good_k)
        slope = torch.where(advantage < 0, bad_slope, good_slope)
        return (slope * (1 - log_ratio.exp()) + k * log_ratio).exp() * advantage * batch.logprobs
    ratio = _ratio(batch, clip)
    if clip.surrogate == Surrogate.CAPPED:
        return ratio.detach().clamp(max=clip.cap) * advantage * batch.logprobs
    if clip.surrogate == Surrogate.SOFT:
        temperature = torch.where(advantage > 0, SOFT_GOOD, SOFT_BAD)
        return 4 / temperature * torch.sigmoid(temperature * (ratio - 1)) * advantage
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - clip.clip_low, 1 + clip.clip_high) * advantage)
    if clip.dual is not None:
        gain = torch.where(advantage < 0, torch.maximum(gain, clip.dual * advantage), gain)
    return gain


def _ratio(batch: TokenBatch, clip: Clip) -> Tensor:
    """Importance ratios (N,): each token's own, or its sequence's, whose gradient is that of the token."""
    difference = batch.logprobs - batch.given(clip.against)
    if clip.ratio == Ratio.SEQUENCE:
        mean = batch.sums(difference.detach()) / batch.lengths()
        difference = mean[batch.rows] + batch.logprobs - batch.logprobs.detach()
    return difference.clamp(-MOST, MOST).exp()
