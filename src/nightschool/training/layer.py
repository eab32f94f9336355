"""One decoder layer over the nodes of a packed tree: its forward, and its gradient written out.

Everything but attention is done some rows at a time, so that what lies between two products is never there for all of
them. The gradient recomputes what costs no product: normalizations, rotations, the gated unit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, cast

import torch
from torch import Tensor, nn

from nightschool.training.attention import TreePlan, attend, attend_backward
from nightschool.training.projections import Factors, Projection

QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
OUT = ("self_attn.o_proj",)
GATED = ("mlp.gate_proj", "mlp.up_proj")
DOWN = ("mlp.down_proj",)
NORMS = ("input_layernorm", "post_attention_layernorm")
HEAD_NORMS = ("self_attn.q_norm", "self_attn.k_norm")


class Norm:
    """Division by the root mean square, computed in float32. Shapes: (..., D) -> (..., D).

    Implements: Zhang and Sennrich, arXiv:1910.07467.
    """

    def __init__(self, module: nn.Module) -> None:
        self.weight = cast(Tensor, module.weight).detach()
        self.epsilon = float(cast(Any, getattr(module, "variance_epsilon", None) or getattr(module, "eps", 0.0)))

    def forward(self, x: Tensor) -> Tensor:
        return (x.float() * self._inverse(x)).to(x.dtype).mul_(self.weight)

    def backward(self, x: Tensor, grad: Tensor) -> Tensor:
        inverse = self._inverse(x)
        unit, slope = x.float() * inverse, (grad * self.weight).float()
        along = (slope * unit).mean(dim=-1, keepdim=True)
        return slope.sub_(unit.mul_(along)).mul_(inverse).to(x.dtype)

    def _inverse(self, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        return length.square_().div_(x.shape[-1]).add_(self.epsilon).rsqrt_()


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotary positions of T nodes. Shapes: `cos`, `sin` (T, D / 2), the second half of a head's width as the first."""

    cos: Tensor
    sin: Tensor

    def turn(self, x: Tensor, rows: slice, out: Tensor, factor: float = 1.0, back: bool = False) -> None:
        """Rotate heads and multiply them. Shapes: x and out (n, ..., D), n the nodes of `rows`.

        Implements: Su et al., arXiv:2104.09864, with halves as pairs.
        """
        shape = (-1, *(1 for _ in range(x.dim() - 2)), self.cos.shape[-1])
        cos = (self.cos[rows] * factor).view(shape)
        sin = (self.sin[rows] * (-factor if back else factor)).view(shape)
        (a, b), (left, right) = x.chunk(2, dim=-1), out.chunk(2, dim=-1)
        torch.mul(a, cos, out=left).addcmul_(b, sin, value=-1)
        torch.mul(b, cos, out=right).addcmul_(a, sin)


@dataclass(frozen=True, slots=True)
class Step:
    """What all layers share in one pass: the tree, the positions and how many rows are taken at a time."""

    plan: TreePlan
    rotation: Rotation
    num_rows: int

    def rows(self, x: Tensor) -> Iterator[slice]:
        for first in range(0, len(x), self.num_rows):
            yield slice(first, min(first + self.num_rows, len(x)))


@dataclass(frozen=True, slots=True)
class Kept:
    """What a layer's gradient needs. Shapes: T nodes, K key heads, G query heads to each, width D.

    `x` and `middle`, the inputs of its two halves (T, hidden); `raw` (T, (H + K) * D), queries and keys before their
    heads are normalized, where they are; `query` (K, T, G, D) scaled, `key` and `value` (K, T, D) as attention reads
    them; `read` (K, T, G, D), what it gave; `gated` (T, 2 * inner), gate and up.
    """

    x: Tensor
    raw: Tensor | None
    query: Tensor
    key: Tensor
    value: Tensor
    read: Tensor
    middle: Tensor
    gated: Tensor

    @property
    def num_bytes(self) -> int:
        tensors = (getattr(self, field.name) for field in fields(self))
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)


class Layer:
    """A layer of a network, by the names of its modules."""

    def __init__(self, block: nn.Module, width: int, packs: bool) -> None:
        self.width = width
        self.scaling = float(cast(Any, block).self_attn.scaling)
        self.qkv, self.out, self.gated, self.down = (
            Projection([cast(Any, block.get_submodule(path)) for path in paths], packs)
            for paths in (QKV, OUT, GATED, DOWN)
        )
        self.norm, self.middle_norm = (Norm(block.get_submodule(path)) for path in NORMS)
        named = dict(block.named_modules())
        self.head_norms = [Norm(named[path]) for path in HEAD_NORMS if path in named]
        self.query_width, self.key_width, _ = self.qkv.widths

    @property
    def projections(self) -> tuple[Projection, ...]:
        return self.qkv, self.out, self.gated, self.down

    def factors(self, adapter: str, dtype: torch.dtype) -> list[Factors | None]:
        return [projection.factors(adapter, dtype) for projection in self.projections]

    def forward(self, x: Tensor, step: Step, factors: list[Factors | None], keeps: bool) -> tuple[Tensor, Kept | None]:
        """Shapes: (T, hidden) -> (T, hidden)."""
        heads = self.key_width // self.width, len(x), self.query_width // self.key_width, self.width
        query, key, value = (x.new_empty(heads), *(x.new_empty(heads[0], len(x), self.width) for _ in range(2)))
        raw = x.new_empty(len(x), self.query_width + self.key_width) if self.head_norms and keeps else None
        for rows in step.rows(x):
            y = self.qkv.forward(self.norm.forward(x[rows]), factors[0])
            if raw is not None:
                raw[rows] = y[:, : self.query_width + self.key_width]
            q, k, v = self._heads(y)
            step.rotation.turn(self._normed(q, 0), rows, query[:, rows].transpose(0, 1), self.scaling)
            step.rotation.turn(self._normed(k, 1), rows, key[:, rows].transpose(0, 1))
            value[:, rows] = v.transpose(0, 1)
        read = attend(query, key, value, step.plan)
        middle, out = torch.empty_like(x), torch.empty_like(x)
        gated = x.new_empty(len(x), self.gated.widths[0] * 2) if keeps else None
        for rows in step.rows(x):
            middle[rows] = x[rows] + self.out.forward(self._flat(read, rows), factors[1])
            y = self.gated.forward(self.middle_norm.forward(middle[rows]), factors[2])
            if gated is not None:
                gated[rows] = y
            out[rows] = middle[rows] + self.down.forward(_gate(y), factors[3])
        return out, Kept(x, raw, query, key, value, read, middle, gated) if gated is not None else None

    def backward(self, grad: Tensor, kept: Kept, step: Step, factors: list[Factors | None]) -> Tensor:
        """The gradient of the input, (T, hidden) -> (T, hidden); the adapter's is added to `factors`."""
        middle, read = torch.empty_like(grad), torch.empty_like(kept.read)
        for rows in step.rows(grad):
            inner = self.down.backward(_gate(kept.gated[rows]), grad[rows], factors[3])
            inner = _gate_backward(kept.gated[rows], inner)
            normed = self.middle_norm.forward(kept.middle[rows])
            inner = self.gated.backward(normed, inner, factors[2])
            middle[rows] = grad[rows] + self.middle_norm.backward(kept.middle[rows], inner)
            inner = self.out.backward(self._flat(kept.read, rows), middle[rows], factors[1])
            read[:, rows] = inner.view(len(inner), len(read), -1, self.width).transpose(0, 1)
        query, key, value = attend_backward(read, kept.query, kept.key, kept.value, step.plan)
        out = torch.empty_like(grad)
        for rows in step.rows(grad):
            y = grad.new_empty(len(out[rows]), sum(self.qkv.widths))
            q, k, v = self._heads(y)
            step.rotation.turn(query[:, rows].transpose(0, 1), rows, q, self.scaling, back=True)
            step.rotation.turn(key[:, rows].transpose(0, 1), rows, k, back=True)
            v.copy_(value[:, rows].transpose(0, 1))
            if kept.raw is not None:
                for norm, before, after in zip(self.head_norms, self._heads(kept.raw[rows]), (q, k), strict=False):
                    after.copy_(norm.backward(before, after))
            inner = self.qkv.backward(self.norm.forward(kept.x[rows]), y, factors[0])
            out[rows] = middle[rows] + self.norm.backward(kept.x[rows], inner)
        return out

    def _heads(self, y: Tensor) -> tuple[Tensor, ...]:
        """Views of the queries (n, K, G, D) and of the keys (n, K, D) and, where they follow, the values."""
        kv_heads = self.key_width // self.width
        query = y[:, : self.query_width].view(len(y), kv_heads, -1, self.width)
        return query, *y[:, self.query_width :].view(len(y), -1, kv_heads, self.width).unbind(1)

    def _normed(self, heads: Tensor, which: int) -> Tensor:
        return self.head_norms[which].forward(heads) if self.head_norms else heads

    def _flat(self, read: Tensor, rows: slice) -> Tensor:
        """(K, T, G, D) -> (n, H * D)."""
        return read[:, rows].transpose(0, 1).flatten(1)


def _gate(gated: Tensor) -> Tensor:
    """silu(gate) * up. Shapes: (n, 2 * inner) -> (n, inner)."""
    gate, up = gated.chunk(2, dim=1)
    return nn.functional.silu(gate).mul_(up)


def _gate_backward(gated: Tensor, grad: Tensor) -> Tensor:
    """Shapes: (n, 2 * inner), (n, inner) -> (n, 2 * inner)."""
    gate, up = gated.chunk(2, dim=1)
    out = torch.empty_like(gated)
    left, right = out.chunk(2, dim=1)
    torch.mul(nn.functional.silu(gate), grad, out=right)
    left.copy_(torch.ops.aten.silu_backward(grad * up, gate))
    return out
