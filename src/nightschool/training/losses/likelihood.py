"""Imitation: the likelihood of what was said."""

from __future__ import annotations

from torch import Tensor

from nightschool.objectives.loss import Aggregation
from nightschool.training.losses.batch import TokenBatch


def sft(batch: TokenBatch, aggregation: Aggregation = Aggregation.TOKEN_MEAN) -> Tensor:
    """Weighted negative log-likelihood."""
    return batch.reduced(-batch.logprobs, aggregation)
