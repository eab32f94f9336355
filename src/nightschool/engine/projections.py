"""Linear layers as the engine multiplies them: those that read the same input as one product.

A decode step is many thin products, and each costs a fixed price. Query, key and value (gate and up) become
one matrix; their adapters one pair, with a block-diagonal second factor.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nightschool.models.lora import LoraLinear, LoraModel
from nightschool.models.products import Product, can_pack, join

SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


@dataclass(frozen=True, slots=True)
class Factors:
    """One adapter of one projection: y += scale * (x a) b. Shapes: a (in, R), b (R, out)."""

    a: Tensor
    b: Tensor
    scale: float


class Projection:
    """Layers that read one input, computed together at the first call and handed out in parts."""

    def __init__(self, layers: list[LoraLinear], packs: bool) -> None:
        self.layers = layers
        self._routing = layers[0].routing
        self._width = layers[0].base.in_features
        self._adapters: dict[str, Factors] = {}
        self._product = Product([join([layer.base for layer in layers])], packs)
        self._x: Tensor | None = None
        self._y = torch.empty(0)
        self._left = 0
        for layer in layers:
            layer.base.weight = nn.Parameter(
                layer.base.weight.new_empty(0), requires_grad=False
            )  # lives in the product

    def part(self, x: Tensor, first: int, end: int) -> Tensor:
        """Columns [first, end) of the product. Edge: another input than last time is computed anew."""
        if x is not self._x:
            self._x, self._y, self._left = x, self(x), len(self.layers)
        y, self._left = self._y, self._left - 1
        if not self._left:
            self._x, self._y = None, torch.empty(0)
        return y[..., first:end]

    def add(self, name: str) -> None:
        """Take the factors of a loaded adapter from the layers."""
        mine = [(layer, layer.lora_a[name], layer.lora_b[name]) for layer in self.layers if name in layer.scale]
        if not mine:
            return
        a = torch.cat([a for _, a, _ in mine]).T.contiguous()
        b = a.new_zeros(a.shape[1], sum(layer.base.out_features for layer in self.layers))
        row = column = 0
        for layer in self.layers:
            if name in layer.scale:
                rank = layer.lora_a[name].shape[0]
                b[row : row + rank, column : column + layer.base.out_features] = layer.lora_b[name].T
                row += rank
            column += layer.base.out_features
        self._adapters[name] = Factors(a.detach(), b.detach(), mine[0][0].scale[name])

    def drop(self, name: str) -> None:
        self._adapters.pop(name, None)

    def __call__(self, x: Tensor) -> Tensor:
        """All layers' outputs side by side."""
        y = self._product(x)
        for name, first, end in self._routing.spans:
            if (factors := self._adapters.get(name)) is not None:
                whole = first == 0 and end == x.shape[0]
                rows, out = (x, y) if whole else (x[first:end], y[first:end])
                inner = rows.reshape(-1, self._width) @ factors.a
                out.view(-1, y.shape[-1]).addmm_(inner, factors.b, alpha=factors.scale)
        return y


class Part(nn.Module):
    """What stands in the network in place of one layer."""

    def __init__(self, projection: Projection, first: int, end: int) -> None:
        super().__init__()
        self.projection, self._first, self._end = projection, first, end

    def forward(self, x: Tensor) -> Tensor:
        return self.projection.part(x, self._first, self._end)


class Head(nn.Module):
    """What stands in the network in place of a linear layer that carries no adapter."""

    def __init__(self, linear: nn.Linear, packs: bool) -> None:
        super().__init__()
        self._product = Product([linear], packs)

    def forward(self, x: Tensor) -> Tensor:
        return self._product(x)


def project(network: nn.Module, lora: LoraModel) -> list[Projection]:
    """Replace the adapted layers of a network by parts of projections, and pack its head if that pays."""
    packs = can_pack(next(network.parameters()))
    if packs:
        for path, module in list(network.named_modules()):
            if type(module) is nn.Linear and not path.endswith(".base"):
                set_module(network, path, Head(module, packs))
    waiting = dict(lora.layers)
    projections: list[Projection] = []
    for path in list(waiting):
        if path not in waiting:
            continue
        parent, _, leaf = path.rpartition(".")
        family = next((names for names in SIBLINGS if leaf in names), (leaf,))
        paths = [each for name in family if (each := f"{parent}.{name}") in waiting]
        if len({waiting[each].base.bias is None for each in paths}) > 1:
            paths = [path]
        projection = Projection([waiting.pop(each) for each in paths], packs)
        projections.append(projection)
        column = 0
        for each, layer in zip(paths, projection.layers, strict=True):
            set_module(network, each, Part(projection, column, column + layer.base.out_features))
            column += layer.base.out_features
    for parameter in network.parameters():  # what is left must not keep the mapped file of all weights alive
        parameter.data = parameter.data.clone()
    return projections


def set_module(network: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, leaf = path.rpartition(".")
    setattr(network.get_submodule(parent), leaf, module)
