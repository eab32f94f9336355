"""Products with frozen weights, as fast as the processor gives them.

In bfloat16 on the CPU a weight is packed once into the layout that the kernels read, which oneDNN otherwise does at
every product; the results are the same to the last bit. Elsewhere a product is the library's own.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Product:
    """Frozen linear layers that read one input, as one product. Shapes: (..., in) -> (..., out of all)."""

    def __init__(self, linears: list[nn.Linear], packs: bool) -> None:
        self._packed = packs
        self._layers = [join(linears)] if packs else linears
        self._weights = [pack(layer.weight) if packs else layer.weight.detach() for layer in self._layers]
        self._biases = [None if layer.bias is None else layer.bias.detach() for layer in self._layers]

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed:
            return multiply(x, self._weights[0], self._biases[0])
        parts = [nn.functional.linear(x, w, b) for w, b in zip(self._weights, self._biases, strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


class Pullback:
    """The gradient of a `Product` with respect to its input. Shapes: (..., out of all) -> (..., in)."""

    def __init__(self, linears: list[nn.Linear], packs: bool) -> None:
        self._packed = packs
        self._weights = (
            [pack(join(linears).weight.T.contiguous())] if packs else [layer.weight.detach() for layer in linears]
        )
        self._widths = [layer.out_features for layer in linears]

    def __call__(self, grad: Tensor) -> Tensor:
        if self._packed:
            return multiply(grad, self._weights[0], None)
        parts = grad.split(self._widths, dim=-1)
        out = parts[0] @ self._weights[0]
        for part, weight in zip(parts[1:], self._weights[1:], strict=True):
            out = out.addmm_(part, weight)
        return out


def join(linears: list[nn.Linear]) -> nn.Linear:
    """One linear layer whose outputs are those of all, one after the other. All have a bias, or none."""
    if len(linears) == 1:
        return linears[0]
    wide = sum(linear.out_features for linear in linears)
    joined = nn.Linear(linears[0].in_features, wide, bias=linears[0].bias is not None, device="meta")
    joined.weight = nn.Parameter(torch.cat([linear.weight for linear in linears]), requires_grad=False)
    if linears[0].bias is not None:
        joined.bias = nn.Parameter(torch.cat([linear.bias for linear in linears]), requires_grad=False)
    return joined


def rows_of(linear: nn.Linear, first: int, end: int) -> nn.Linear:
    """A linear layer with some of another's outputs, on the same memory."""
    weight, bias = linear.weight[first:end], None if linear.bias is None else linear.bias[first:end]
    part = nn.Linear(linear.in_features, len(weight), bias=bias is not None, device="meta")
    part.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        part.bias = nn.Parameter(bias, requires_grad=False)
    return part


def pack(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach())


def multiply(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


def can_pack(weight: Tensor) -> bool:
    """Whether packing is there and right, tried on a small product: the operators are not public."""
    if weight.dtype != torch.bfloat16 or weight.device.type != "cpu":
        return False
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(shape, generator=generator).bfloat16() for shape in ((4, 1, 96), (64, 96)))
    try:
        found = multiply(x, pack(w), None)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    return bool(torch.allclose(found, nn.functional.linear(x, w), atol=0.1))
