"""Batches for losses: one list of token values per sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from nightschool.training.losses.batch import TokenBatch
from nightschool.types import Sample

Rows = Sequence[Sequence[float]]


def batch_of(
    logprobs: Rows, reference: Rows | None = None, groups: Sequence[int] | None = None, **notes: Sequence[float]
) -> TokenBatch:
    """Float32 log-probabilities with gradient. `notes` are the annotations, and `weights`."""
    weights = torch.tensor(notes.pop("weights", [1.0] * len(logprobs)), dtype=torch.float32)
    flat = torch.tensor([value for row in logprobs for value in row], requires_grad=True)
    given = {} if reference is None else {"reference_logprobs": torch.tensor([v for row in reference for v in row])}
    return TokenBatch(
        flat,
        torch.tensor([place for place, row in enumerate(logprobs) for _ in row]),
        weights,
        len(flat),
        len(logprobs),
        given,
        {name: torch.tensor(values) for name, values in notes.items()},
        None if groups is None else torch.tensor(groups),
    )


def of_log_ratios(ratios: Sequence[float], groups: Sequence[int] | None = None, **notes: Sequence[float]) -> TokenBatch:
    """One token a sequence, whose log-ratio to the reference is given."""
    return batch_of([[-5.0 + ratio] for ratio in ratios], [[-5.0]] * len(ratios), groups, **notes)


def slopes(loss: Tensor, batch: TokenBatch) -> list[float]:
    """The gradient with respect to each token's log-probability."""
    [gradient] = torch.autograd.grad(loss, batch.logprobs)
    return gradient.tolist()


def agrees_with_finite_differences(loss: Callable[[TokenBatch], Tensor], batch: TokenBatch) -> bool:
    """In float64, at the batch's own values."""

    def value(logprobs: Tensor) -> Tensor:
        return loss(
            TokenBatch(
                logprobs,
                batch.rows,
                batch.weights.double(),
                batch.num_tokens,
                batch.num_sequences,
                {name: given.double() for name, given in batch.tokens.items()},
                {name: noted.double() for name, noted in batch.annotations.items()},
                batch.groups,
            )
        )

    return torch.autograd.gradcheck(value, batch.logprobs.detach().double().requires_grad_())


def row(name: str, ids: Sequence[int], prompt: int = 2, reward: float | None = None, **notes: float) -> Sample:
    """A sample whose first `prompt` tokens were not sampled."""
    mask = tuple(place >= prompt for place in range(len(ids)))
    return Sample(name, tuple(ids), mask, mask, reward=reward, annotations=notes)
