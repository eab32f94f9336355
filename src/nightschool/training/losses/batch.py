"""What a loss sees of a batch, and how token values become one number.

A loss is a pure function `(TokenBatch, **settings) -> Tensor` of the model's outputs and what its objective
annotated. Most losses are sums over sequences: shares of micro-batches add up to the loss of the batch, because every
denominator is global. A coupled loss (pairs, batch statistics) is given the whole batch at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nightschool.errors import InputError
from nightschool.objectives.loss import Aggregation

MOST = 20.0  # nats: a ratio of e^20 and one beyond it are the same


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Loss tokens of B sequences, flat. Shapes: N tokens; per-sequence values (B,).

    `logprobs` are the policy's, with gradient; `rows[n]` is the sequence of token n. `tokens` holds given values per
    token (`reference_logprobs`, `behavior_logprobs`, `advantage`, ...), `annotations` given values per sequence.
    `groups[b]` numbers the group of sequence b, -1 without one. `num_tokens` and `num_sequences` count the whole
    batch over all micro-batches: loss tokens, and sequences with at least one of them. `outputs` are what models say,
    with gradient, by the names of `objectives.loss`: (N,) or (N, K).
    """

    logprobs: Tensor
    rows: Tensor
    weights: Tensor
    num_tokens: int
    num_sequences: int
    tokens: Mapping[str, Tensor] = field(default_factory=dict)
    annotations: Mapping[str, Tensor] = field(default_factory=dict)
    groups: Tensor | None = None
    outputs: Mapping[str, Tensor] = field(default_factory=dict)

    def given(self, name: str) -> Tensor:
        """Values per token (N,). Raises: InputError when some sample carries none."""
        if name not in self.tokens:
            raise InputError(f"The samples carry no {name}.", "A missing value is never a number.", "")
        return self.tokens[name]

    def noted(self, name: str) -> Tensor:
        """Values per sequence (B,). Raises: InputError when some sample carries none."""
        if name not in self.annotations:
            raise InputError(f"The samples are not annotated with {name}.", "A missing value is never a number.", "")
        return self.annotations[name]

    def output(self, name: str) -> Tensor:
        """What the models say. Raises: InputError when nobody asked for it."""
        if name not in self.outputs:
            raise InputError(f"The batch has no {name}.", "Its loss names none among its outputs.", "")
        return self.outputs[name]

    def sums(self, values: Tensor) -> Tensor:
        """Per-sequence sums of token values: (N,) -> (B,)."""
        return torch.zeros_like(self.weights).index_add(0, self.rows, values)

    def lengths(self) -> Tensor:
        """Loss tokens per sequence: (B,)."""
        return self.sums(torch.ones_like(self.logprobs)).detach()

    def log_ratios(self, name: str = "reference_logprobs") -> Tensor:
        """Masked, summed log-ratio of the policy to given log-probabilities: (B,)."""
        return self.sums(self.logprobs - self.given(name))

    def ratios(self, name: str, of_sequences: bool = False) -> Tensor:
        """Importance ratios to given log-probabilities (N,): each token's own, or exp(mean of the token log-ratios) of
        its sequence, whose gradient is then that of the token (Zheng et al., arXiv:2507.18071).

        Edge: log-ratios beyond +-20 count as that, without gradient.
        """
        difference = self.logprobs - self.given(name)
        if of_sequences:
            mean = self.sums(difference.detach()) / self.lengths()
            difference = mean[self.rows] + self.logprobs - self.logprobs.detach()
        return difference.clamp(-MOST, MOST).exp()

    def pairs(self) -> tuple[Tensor, Tensor]:
        """Sequences two by two, as groups hold them: (B / 2,) each. Raises: InputError for any other group."""
        if self.groups is None or (self.groups < 0).any() or not (torch.bincount(self.groups) == 2).all():
            raise InputError("A pair is a group of two replies.", "A batch holds another one.", "")
        first, second = torch.argsort(self.groups, stable=True).view(-1, 2).unbind(1)
        return first, second

    def reduced(self, values: Tensor, aggregation: Aggregation, max_length: float | None = None) -> Tensor:
        """The batch's number for token values (N,), weighted by sequence.

        Implements: the four modes of `objectives.loss.Aggregation`. `max_length` is the constant of `CONSTANT`.
        """
        weighted = values * self.weights[self.rows]
        if aggregation == Aggregation.TOKEN_MEAN:
            return weighted.sum() / self.num_tokens
        if aggregation == Aggregation.SEQUENCE_MEAN:
            return (self.sums(weighted) / self.lengths().clamp(min=1)).sum() / self.num_sequences
        if aggregation == Aggregation.SEQUENCE_SUM:
            return weighted.sum() / self.num_sequences
        if not max_length:
            raise InputError(f"{aggregation} has no length.", "It divides by a constant.", "Set max_length.")
        return weighted.sum() / (self.num_sequences * max_length)
