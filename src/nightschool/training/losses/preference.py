"""Preferences and judgements of single replies, told by log-ratios to a reference. Log-ratios are sums over tokens."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from nightschool.errors import InputError
from nightschool.training.losses.batch import TokenBatch


def dpo(
    batch: TokenBatch, beta: float = 0.1, noise: float = 0.0, smoothing: float = 0.0, sft_weight: float = 0.0
) -> Tensor:
    """-log sigma(beta h) over pairs, h the preferred reply's log-ratio minus the other's; mean over the pairs.

    A pair is a group of two rows, annotated `preferred` 1 and 0; its weight is that of the preferred row. `noise` is
    the share of pairs told the wrong way round, and makes the loss unbiased in spite of it. `smoothing` is the
    conservative form, which counts the other direction instead. `sft_weight` adds the preferred reply's negative
    log-likelihood, summed over its tokens.

    Implements: Rafailov et al., arXiv:2305.18290, Eq. 7; Chowdhury et al., arXiv:2403.00409 (robust).
    """
    chosen, rejected = _pairs(batch)
    ratios = batch.log_ratios()
    h = beta * (ratios[chosen] - ratios[rejected])
    right, wrong = -logsigmoid(h), -logsigmoid(-h)
    losses = (1 - smoothing) * right + smoothing * wrong
    if noise:
        losses = ((1 - noise) * right - noise * wrong) / (1 - 2 * noise)
    if sft_weight:
        losses = losses - sft_weight * batch.sums(batch.logprobs)[chosen]
    return (batch.weights[chosen] * losses).sum() / len(chosen)


def _pairs(batch: TokenBatch) -> tuple[Tensor, Tensor]:
    """The rows of preferred replies, and of what each was preferred to."""
    preferred = batch.noted("preferred") > 0
    groups = batch.groups
    if groups is None or (groups < 0).any() or not (torch.bincount(groups) == 2).all():
        raise InputError("A preference is a group of two replies.", "A batch holds another one.", "")
    order = torch.argsort(2 * groups + (~preferred).long())
    pairs = order.view(-1, 2)
    if not (preferred[pairs[:, 0]].all() and not preferred[pairs[:, 1]].any()):
        raise InputError("One reply of a pair is preferred.", "A batch holds a pair with none or two.", "")
    return pairs[:, 0], pairs[:, 1]
