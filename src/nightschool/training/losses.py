"""Pure losses on tensors. An objective names one of them; the loop and the backends do not know which.

A loss sees the scored tokens of some sequences of a batch (`TokenBatch`) and returns its share of the whole
batch's loss: shares of micro-batches add up to the loss of the batch, because every denominator is global.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nightschool.errors import InputError
from nightschool.types import Sample


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Loss tokens of B sequences, flat. Shapes: N tokens; per-sequence values (B,).

    `rows[n]` is the sequence of token n. `num_tokens` and `num_sequences` count the whole batch over
    all micro-batches: loss tokens, and sequences with at least one of them.
    """

    logprobs: Tensor
    rows: Tensor
    weights: Tensor
    reference_logprobs: Tensor | None
    annotations: Mapping[str, Tensor]
    num_tokens: int
    num_sequences: int

    def sums(self, values: Tensor) -> Tensor:
        """Per-sequence sums of token values: (N,) -> (B,)."""
        return torch.zeros_like(self.weights).index_add(0, self.rows, values)


Loss = Callable[[TokenBatch], Tensor]


def sft_loss(batch: TokenBatch) -> Tensor:
    """Weighted negative log-likelihood, mean over the loss tokens of the whole batch."""
    return -(batch.weights[batch.rows] * batch.logprobs).sum() / batch.num_tokens


def squared_log_ratio_loss(batch: TokenBatch) -> Tensor:
    """weight * (beta * LR - A)^2 / (2 * beta), mean over the sequences of the whole batch.

    LR is the sum over a sequence's loss tokens of policy minus reference. At LR = 0 the gradient is that
    of a policy gradient with advantage A, whatever beta. `annotations`: `advantage`, `beta`, optionally
    `floor`: a sequence with A < 0 whose LR is below it is pushed no further down (it may still come back).

    Implements: Ritter et al., arXiv:2602.19362, Eq. 3, divided by 2 * beta.
    """
    if batch.reference_logprobs is None:
        raise InputError("The samples carry no reference log-probabilities.", "A log-ratio needs an anchor.", "")
    beta, advantage = batch.annotations["beta"], batch.annotations["advantage"]
    log_ratio = batch.sums(batch.logprobs - batch.reference_logprobs)
    residual = beta * log_ratio - advantage
    if "floor" in batch.annotations:
        spent = (advantage < 0) & (log_ratio < batch.annotations["floor"]) & (residual > 0)
        residual = torch.where(spent, residual.detach(), residual)
    return (batch.weights * residual.square() / (2 * beta)).sum() / batch.num_sequences


BY_NAME: Mapping[str, Loss] = {"sft": sft_loss, "squared_log_ratio": squared_log_ratio_loss}


def totals(samples: Sequence[Sample]) -> tuple[int, int]:
    """Loss tokens and sequences with any of them: the denominators of the whole batch.

    Raises:
        InputError: no token of the batch enters the loss (a template without assistant spans, usually).
    """
    counts = [sum(sample.loss_mask) for sample in samples]
    if not sum(counts):
        raise InputError("No token of the batch enters the loss.", "Every loss mask is empty.", "Check the dataset.")
    return sum(counts), sum(count > 0 for count in counts)
