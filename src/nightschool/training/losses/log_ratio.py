"""Regression of a sequence's log-ratio: OAPL and its relatives."""

from __future__ import annotations

import torch
from torch import Tensor

from nightschool.errors import InputError
from nightschool.objectives.loss import NORMALIZERS
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


def group_variance(batch: TokenBatch, beta: float) -> Tensor:
    """weight * beta / 2 * (LR - r / beta + log Z)^2, log Z the group's mean of r / beta - LR; mean over sequences.

    `annotations`: `reward`. The mean is weighted as the squares are; at LR = 0 the gradient is that of a
    policy gradient with the group's mean reward as baseline. Coupled: a group's rows are seen together.

    Implements: Richter et al., arXiv:2010.10436; Bartoldson et al., arXiv:2503.18929 (unverified), times beta / 2.
    """
    implied = batch.noted("reward") / beta - batch.log_ratios()
    log_z = _group_means(batch, implied)
    return (batch.weights * beta / 2 * (implied - log_z).square()).sum() / batch.num_sequences


def bellman(batch: TokenBatch, beta: float) -> Tensor:
    """weight * (beta * LR + V - r)^2 / (2 * beta), V = beta * log sum exp of the logits where a reply begins; mean
    over sequences. `annotations`: `reward`.

    V has a gradient, as LR has: what is common to all replies to a request moves the value, and not their odds.

    Implements: TBRM, arXiv:2505.15311 (formula reconstructed, unverified), divided by 2 * beta.
    """
    starts = torch.searchsorted(batch.rows, torch.arange(len(batch.weights), device=batch.rows.device))
    value = beta * batch.output(NORMALIZERS)[starts]
    residual = beta * batch.log_ratios() + value - batch.noted("reward")
    return (batch.weights * residual.square() / (2 * beta)).sum() / batch.num_sequences


def rebel(batch: TokenBatch, eta: float = 1.0) -> Tensor:
    """((LR - LR') / eta - (A - A'))^2, mean over the pairs; a pair weighs what its rows weigh on average.

    Implements: Gao et al., arXiv:2404.16767.
    """
    first, second = batch.pairs()
    ratios, advantage = batch.log_ratios(), batch.noted("advantage")
    residual = (ratios[first] - ratios[second]) / eta - (advantage[first] - advantage[second])
    return ((batch.weights[first] + batch.weights[second]) / 2 * residual.square()).mean()


def _group_means(batch: TokenBatch, values: Tensor) -> Tensor:
    """Each sequence's mean over its group: (B,) -> (B,). Raises: InputError for a group of one."""
    groups = batch.groups
    if groups is None or (groups < 0).any() or (torch.bincount(groups) < 2).any():
        raise InputError("A group compares replies to one request.", "A batch holds one that stands alone.", "")
    zeros = values.new_zeros(int(groups.max()) + 1)
    weights = zeros.index_add(0, groups, batch.weights).clamp(min=1e-12)
    return (zeros.index_add(0, groups, batch.weights * values) / weights)[groups]
