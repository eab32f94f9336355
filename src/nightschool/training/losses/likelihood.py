"""Imitation: the likelihood of what was said."""

from __future__ import annotations

from torch import Tensor

from nightschool.objectives.loss import Aggregation
from nightschool.training.losses.batch import TokenBatch


def sft(
    batch: TokenBatch, aggregation: Aggregation = Aggregation.TOKEN_MEAN, max_length: float | None = None
) -> Tensor:
    """Weighted negative log-likelihood."""
    return batch.reduced(-batch.logprobs, aggregation, max_length)


def dft(
    batch: TokenBatch, aggregation: Aggregation = Aggregation.TOKEN_MEAN, max_length: float | None = None
) -> Tensor:
    """The same with each token's share multiplied by its own probability, which takes no gradient.

    Edge: a token that the policy deems impossible teaches nothing.

    Implements: Wu et al., arXiv:2508.05629 (equation unverified).
    """
    return batch.reduced(-batch.logprobs * batch.logprobs.detach().exp(), aggregation, max_length)
