"""Regression of a sequence's log-ratio: OAPL and its relatives."""

from __future__ import annotations

import torch
from torch import Tensor

from nightschool.training.losses.batch import TokenBatch


def squared_log_ratio(batch: TokenBatch) -> Tensor:
    """weight * (beta * LR - A)^2 / (2 * beta), mean over the sequences of the whole batch.

    LR is the sum over a sequence's loss tokens of policy minus reference. At LR = 0 the gradient is that
    of a policy gradient with advantage A, whatever beta. `annotations`: `advantage`, `beta`, optionally
    `floor`: a sequence with A < 0 whose LR is below it is pushed no further down (it may still come back).

    Implements: Ritter et al., arXiv:2602.19362, Eq. 3, divided by 2 * beta.
    """
    beta, advantage = batch.noted("beta"), batch.noted("advantage")
    log_ratio = batch.log_ratios()
    residual = beta * log_ratio - advantage
    if "floor" in batch.annotations:
        spent = (advantage < 0) & (log_ratio < batch.annotations["floor"]) & (residual > 0)
        residual = torch.where(spent, residual.detach(), residual)
    return (batch.weights * residual.square() / (2 * beta)).sum() / batch.num_sequences
