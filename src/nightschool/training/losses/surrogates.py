"""What the clipped losses maximize of a token: functions of its importance ratio rho and its advantage A, (N,).

sg() stops the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from nightschool.objectives.clipping import Clip, Ratio, Surrogate
from nightschool.training.losses.batch import MOST, TokenBatch

SOFT_GOOD, SOFT_BAD = 1.0, 1.05  # temperatures, by the sign of the advantage
GAMMA_GOOD, GAMMA_BAD = (2.0, 3.0), (3.0, 2.0)  # k and lambda, likewise


def bounded(batch: TokenBatch, clip: Clip, advantage: Tensor) -> Tensor:
    """min(rho A, clip(rho) A), where A < 0 at least A * dual.

    Implements: Schulman et al., arXiv:1707.06347, Eq. 7; Ye et al., arXiv:1912.09729 (dual clip).
    """
    ratio = batch.ratios(clip.against, clip.ratio == Ratio.SEQUENCE)
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - clip.clip_low, 1 + clip.clip_high) * advantage)
    if clip.dual is not None:
        gain = torch.where(advantage < 0, torch.maximum(gain, clip.dual * advantage), gain)
    return gain


def capped(batch: TokenBatch, clip: Clip, advantage: Tensor) -> Tensor:
    """sg(min(rho, cap)) A log pi. Implements: MiniMax, arXiv:2506.13585."""
    ratio = batch.ratios(clip.against, clip.ratio == Ratio.SEQUENCE)
    return ratio.detach().clamp(max=clip.cap) * advantage * batch.logprobs


def soft(batch: TokenBatch, clip: Clip, advantage: Tensor) -> Tensor:
    """4 / tau * sigma(tau (rho - 1)) A. Implements: Gao et al., arXiv:2511.20347."""
    tau = torch.where(advantage > 0, SOFT_GOOD, SOFT_BAD)
    ratio = batch.ratios(clip.against, clip.ratio == Ratio.SEQUENCE)
    return 4 / tau * torch.sigmoid(tau * (ratio - 1)) * advantage


def gamma(batch: TokenBatch, clip: Clip, advantage: Tensor) -> Tensor:
    """sg(W^k e^(lambda (1 - W))) A log pi, W a sequence's product of ratios. Implements: VESPO, arXiv:2602.10693."""
    log_ratio = batch.log_ratios(clip.against).detach().clamp(-MOST, MOST)[batch.rows]
    k = torch.where(advantage < 0, GAMMA_BAD[0], GAMMA_GOOD[0])
    slope = torch.where(advantage < 0, GAMMA_BAD[1], GAMMA_GOOD[1])
    return (slope * (1 - log_ratio.exp()) + k * log_ratio).exp() * advantage * batch.logprobs


SURROGATES: Mapping[Surrogate, Callable[[TokenBatch, Clip, Tensor], Tensor]] = {
    Surrogate.CLIPPED: bounded,
    Surrogate.CAPPED: capped,
    Surrogate.SOFT: soft,
    Surrogate.GAMMA: gamma,
}
