"""Linear layers that read one input, with a frozen base and one adapter, and their gradient written out.

Implements: Hu et al., arXiv:2106.09685: y = W x + (alpha / r) B A x. W gets no gradient, so a step costs two products
with it per token instead of three.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn

from nightschool.models.lora import LoraLinear
from nightschool.models.products import Product, Pullback


@dataclass(frozen=True, slots=True)
class Factors:
    """One adapter of a projection's layers, side by side, and room for its gradient.

    Shapes: R ranks of all layers, `a` (R, in), `b` (R, out) scaled and block-diagonal, in the network's number format;
    `grad_a`, `grad_b` of the same shapes in float32.
    """

    a: Tensor
    b: Tensor
    grad_a: Tensor
    grad_b: Tensor


class Projection:
    """Shapes: x (N, in), y (N, out of all layers)."""

    def __init__(self, layers: list[nn.Linear | LoraLinear], packs: bool) -> None:
        self._adapted = [(at, layer) for at, layer in enumerate(layers) if isinstance(layer, LoraLinear)]
        bases = [layer.base if isinstance(layer, LoraLinear) else layer for layer in layers]
        self._product, self._pullback = Product(bases, packs), Pullback(bases, packs)
        self.widths = [base.out_features for base in bases]
        self._columns = [0, *accumulate(self.widths)]

    def parameters(self, adapter: str) -> list[nn.Parameter]:
        """A and B of each layer that carries the adapter."""
        return [p for _, layer in self._carriers(adapter) for p in (layer.lora_a[adapter], layer.lora_b[adapter])]

    def factors(self, adapter: str, dtype: torch.dtype) -> Factors | None:
        """The adapter as it stands; `None` where no layer carries it."""
        carriers = self._carriers(adapter)
        if not carriers:
            return None
        a = torch.cat([layer.lora_a[adapter].detach() for _, layer in carriers])
        b = a.new_zeros(len(a), self._columns[-1])
        for rows, columns, layer in self._places(adapter):
            b[rows, columns] = layer.lora_b[adapter].detach().T * layer.scale[adapter]
        grads = (torch.zeros(one.shape, dtype=torch.float32, device=a.device) for one in (a, b))
        return Factors(a.to(dtype), b.to(dtype), *grads)

    def forward(self, x: Tensor, factors: Factors | None) -> Tensor:
        y = self._product(x)
        return y if factors is None else y.addmm_(x @ factors.a.T, factors.b)

    def backward(self, x: Tensor, grad: Tensor, factors: Factors | None) -> Tensor:
        """The gradient of x; that of the adapter is added to its factors'."""
        out = self._pullback(grad)
        if factors is None:
            return out
        inner = grad @ factors.b.T
        factors.grad_a.add_(inner.T @ x)
        factors.grad_b.add_((x @ factors.a.T).T @ grad)
        return out.addmm_(inner, factors.a)

    def gradients(self, adapter: str, factors: Factors) -> list[Tensor]:
        """What was added up, in the order of `parameters`."""
        found: list[Tensor] = []
        for rows, columns, layer in self._places(adapter):
            found += [factors.grad_a[rows], (factors.grad_b[rows, columns].T * layer.scale[adapter]).contiguous()]
        return found

    def _carriers(self, adapter: str) -> list[tuple[int, LoraLinear]]:
        return [(at, layer) for at, layer in self._adapted if adapter in layer.scale]

    def _places(self, adapter: str) -> Iterator[tuple[slice, slice, LoraLinear]]:
        """Per layer that carries the adapter: its ranks and its outputs among those of all."""
        row = 0
        for at, layer in self._carriers(adapter):
            rank = layer.lora_a[adapter].shape[0]
            yield slice(row, row + rank), slice(self._columns[at], self._columns[at + 1]), layer
            row += rank
