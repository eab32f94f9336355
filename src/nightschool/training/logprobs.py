"""Log-probabilities of chosen tokens from hidden states, without keeping tokens x vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nightschool.models.products import Product, Pullback, can_pack, rows_of
from nightschool.training.limits import CHUNK_ROWS, TILE


class Head:
    """An output layer cut into tiles of the vocabulary, for `target_logprobs`."""

    def __init__(self, linear: nn.Linear) -> None:
        packs = can_pack(linear.weight)
        self.weight = linear.weight.detach()
        self.tiles: list[tuple[int, Product, Pullback]] = []
        for first in range(0, linear.out_features, TILE):
            part = rows_of(linear, first, first + TILE)
            self.tiles.append((first, Product([part], packs), Pullback([part], packs)))


def target_logprobs(hidden: Tensor, head: Head, targets: Tensor, temperatures: Tensor) -> Tensor:
    """log softmax(head(hidden) / temperature)[target] in float32.

    Memory is `CHUNK_ROWS` x `TILE` at any time: the head is frozen, so the gradient with respect to the hidden state
    is known in closed form, (W[target] - softmax @ W) / temperature, and both are sums over the vocabulary, taken tile
    by tile relative to the largest logit so far.

    Implements: the online softmax of Milakov and Gimelshein, arXiv:1805.02867.
    Shapes: hidden (N, D), targets (N,), temperatures (N,) float32 -> (N,).
    """
    return _TargetLogprobs.apply(hidden, head, targets, temperatures)  # type: ignore[return-value]


class _TargetLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Head, targets: Tensor, temperatures: Tensor) -> Tensor:
        out = torch.empty(len(targets), dtype=torch.float32, device=hidden.device)
        slopes = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        for first in range(0, len(targets), CHUNK_ROWS):
            part = slice(first, first + CHUNK_ROWS)
            out[part], expected = _summed(
                hidden[part], head, targets[part], temperatures[part, None], slopes is not None
            )
            if slopes is not None and expected is not None:
                slopes[part] = ((head.weight[targets[part]] - expected) / temperatures[part, None]).to(hidden.dtype)
        if slopes is not None:
            ctx.save_for_backward(slopes)
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, None, None, None]:
        (slopes,) = ctx.saved_tensors
        return slopes * grad_outputs[0][:, None].to(slopes.dtype), None, None, None


def _summed(
    hidden: Tensor, head: Head, targets: Tensor, temperatures: Tensor, averages: bool
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities (n,) of targets (n,), and softmax @ W (n, D) in float32 if it is asked for."""
    chosen = torch.empty(len(hidden), 1, device=hidden.device)
    largest, total = torch.full_like(chosen, -torch.inf), torch.zeros_like(chosen)
    average = torch.zeros(hidden.shape, device=hidden.device) if averages else None
    for first, product, pullback in head.tiles:
        logits = product(hidden).float().div_(temperatures)
        inside = ((targets >= first) & (targets < first + logits.shape[1])).nonzero()[:, 0]
        chosen[inside, 0] = logits[inside, targets[inside] - first]
        before, largest = largest, torch.maximum(largest, logits.amax(dim=1, keepdim=True))
        shrunk, weights = (before - largest).exp_(), logits.sub_(largest).exp_()
        total.mul_(shrunk).add_(weights.sum(dim=1, keepdim=True))
        if average is not None:
            average.mul_(shrunk).add_(pullback(weights.to(hidden.dtype)))
    return (chosen - largest - total.log())[:, 0], None if average is None else average.div_(total)


def top_logprobs(hidden: Tensor, head: nn.Linear, targets: Tensor, temperatures: Tensor) -> Tensor:
    """log softmax(head(hidden) / temperature) at several targets of each place, in float32.

    Memory is `CHUNK_ROWS` x V at any time, and the rows of the head that the targets name, chunk by chunk.

    Shapes: hidden (N, D), targets (N, K), temperatures (N,) float32 -> (N, K).
    """
    return _TopLogprobs.apply(hidden, head, targets, temperatures)  # type: ignore[return-value]


@torch.no_grad()
def likeliest(hidden: Tensor, head: nn.Linear, k: int) -> Tensor:
    """The ids of the k likeliest tokens at each place, likeliest first: (N, D) -> (N, k)."""
    found = [head(hidden[at : at + CHUNK_ROWS]).topk(k, dim=1).indices for at in range(0, len(hidden), CHUNK_ROWS)]
    return torch.cat(found) if found else torch.empty(0, k, dtype=torch.long, device=hidden.device)


class _TopLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: nn.Linear, targets: Tensor, temperatures: Tensor) -> Tensor:
        weight = head.weight
        out = torch.empty(targets.shape, dtype=torch.float32, device=hidden.device)
        expected = torch.empty_like(hidden)
        for first in range(0, len(targets), CHUNK_ROWS):
            part = slice(first, first + CHUNK_ROWS)
            logits = head(hidden[part]).float().div_(temperatures[part, None])
            out[part] = logits.gather(1, targets[part]) - logits.logsumexp(dim=1, keepdim=True)
            if ctx.needs_input_grad[0]:
                expected[part] = (logits.softmax(dim=1).to(weight.dtype) @ weight).to(hidden.dtype)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(expected, targets, temperatures)
            ctx.weight = weight  # frozen: it needs no gradient and no version check
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, None, None, None]:
        expected, targets, temperatures = ctx.saved_tensors
        slopes, weight = torch.empty_like(expected), ctx.weight
        for first in range(0, len(targets), CHUNK_ROWS):
            part = slice(first, first + CHUNK_ROWS)
            pull = (grad_outputs[0][part] / temperatures[part, None]).to(weight.dtype)
            drawn = torch.einsum("nk,nkd->nd", pull, weight[targets[part]])
            slopes[part] = (drawn - pull.sum(dim=1, keepdim=True) * expected[part]).to(slopes.dtype)
        return slopes, None, None, None


def normalizers(hidden: Tensor, head: nn.Linear, temperatures: Tensor) -> Tensor:
    """log sum exp(head(hidden) / temperature) in float32: what a log-probability leaves out of its logit.

    Memory is `CHUNK_ROWS` x V at any time. Shapes: hidden (N, D), temperatures (N,) float32 -> (N,).
    """
    return _Normalizers.apply(hidden, head, temperatures)  # type: ignore[return-value]


class _Normalizers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: nn.Linear, temperatures: Tensor) -> Tensor:
        out = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
        slopes = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        for first in range(0, len(hidden), CHUNK_ROWS):
            part = slice(first, first + CHUNK_ROWS)
            logits = head(hidden[part]).float().div_(temperatures[part, None])
            out[part] = logits.logsumexp(dim=1)
            if slopes is not None:
                expected = logits.softmax(dim=1).to(head.weight.dtype) @ head.weight
                slopes[part] = (expected / temperatures[part, None]).to(hidden.dtype)
        if slopes is not None:
            ctx.save_for_backward(slopes)
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, None, None]:
        (slopes,) = ctx.saved_tensors
        return slopes * grad_outputs[0][:, None].to(slopes.dtype), None, None
