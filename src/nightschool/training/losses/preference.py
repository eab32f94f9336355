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


def ipo(batch: TokenBatch, beta: float = 0.1) -> Tensor:
    """(h - 1 / (2 beta))^2 over pairs, h the difference of log-ratios per token; mean over the pairs.

    A margin of 1 / (2 beta) is enough: a pair that exceeds it is pulled back.

    Implements: Azar et al., arXiv:2310.12036, Eq. 17, per token (the normalization is unverified).
    """
    chosen, rejected = _pairs(batch)
    ratios = batch.log_ratios() / batch.lengths().clamp(min=1)
    margin = ratios[chosen] - ratios[rejected] - 1 / (2 * beta)
    return (batch.weights[chosen] * margin.square()).sum() / len(chosen)


def kto(batch: TokenBatch, beta: float = 0.1) -> Tensor:
    """1 - sigma(+-beta (LR - z0)), plus for `desirable` rows, mean over the judged rows of the whole batch.

    z0 is the mean log-ratio of `mismatched` rows, not below 0 (clamped after the mean), without gradient.

    Implements: Ethayarajh et al., arXiv:2402.01306, Eq. 7 and 8.
    """
    mismatched, ratios = batch.noted("mismatched") > 0, batch.log_ratios()
    if not mismatched.any():
        raise InputError("A batch has no mismatched replies.", "There is nothing to compare with.", "")
    reference_point = ratios[mismatched].mean().clamp(min=0).detach()
    losses = torch.sigmoid(-_signs(batch) * beta * (ratios - reference_point))
    return (batch.weights * losses)[~mismatched].sum() / (~mismatched).sum()


def apo_zero(batch: TokenBatch, beta: float = 0.1) -> Tensor:
    """KTO with z0 = 0: no mismatched rows, and a sum over sequences.

    Implements: D'Oosterlinck et al., arXiv:2408.06266, Eq. 7, for unpaired judgements.
    """
    losses = torch.sigmoid(-_signs(batch) * beta * batch.log_ratios())
    return (batch.weights * losses).sum() / batch.num_sequences


def bco(batch: TokenBatch, beta: float = 0.1) -> Tensor:
    """-log sigma(+-(u - delta)), plus for `desirable` rows, u = beta LR; mean over the sequences.

    delta is the mean of u over the whole batch, without gradient.

    Implements: Jung et al., arXiv:2404.04656, with a batch's mean for the running one.
    """
    implicit = beta * batch.log_ratios()
    losses = -logsigmoid(_signs(batch) * (implicit - implicit.mean().detach()))
    return (batch.weights * losses).sum() / batch.num_sequences


def _signs(batch: TokenBatch) -> Tensor:
    return 2 * batch.noted("desirable") - 1


def _pairs(batch: TokenBatch) -> tuple[Tensor, Tensor]:
    """The rows of preferred replies, and of what each was preferred to."""
    preferred = batch.noted("preferred") > 0
    first, second = batch.pairs()
    if not (preferred[first] ^ preferred[second]).all():
        raise InputError("One reply of a pair is preferred.", "A batch holds a pair with none or two.", "")
    return torch.where(preferred[first], first, second), torch.where(preferred[first], second, first)
