"""Attention of rows over their cached keys and values, the prefix that neighbors share read once for all.

One query per row against its own keys is a product too thin for the processor. Where rows share a prompt,
their queries against that prefix are one wide product. Scores against the prefix and against a row's own
tokens lie side by side, so that one softmax normalizes both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from nightschool.models.attention import additive

WORTH = 1024  # prefix positions, summed over all rows but one, from which a copy laid out for the products pays
STRIDE = 32  # keys are read in multiples of it: a library plans each new shape of a product anew, and likes round ones


@dataclass(frozen=True, slots=True)
class Prefix:
    """What a group shares, as the products read it. Shapes: keys (layers, K, D, P), values (layers, K, P, D)."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class Group:
    """Rows [first, end) of the batch; they share their first `length` positions; the longest has `seen`."""

    first: int
    end: int
    length: int
    seen: int
    prefix: Prefix | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Look:
    """What a group may look at behind its prefix. Shapes: attention_mask (rows, 1, 1, L, T), added to the scores."""

    group: Group
    attention_mask: Tensor


def looks_of(groups: Sequence[Group], positions: Tensor, slots: int, dtype: torch.dtype) -> list[Look]:
    """Masks for a forward of tokens at `positions` (R, L) over a cache of `slots` positions a row."""
    found = []
    for group in groups:
        end = min(group.length + -(-(group.seen - group.length) // STRIDE) * STRIDE, slots)
        own = torch.arange(group.length, end, device=positions.device)
        visible = own <= positions[group.first : group.end, None, None, :, None]
        found.append(Look(group, additive(visible, dtype)))
    return found


class Attention:
    """Scaled dot-product attention of every group. Scores live in buffers that grow and are used again."""

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self._buffers: list[Tensor] = [torch.empty(0)] * 3

    def __call__(self, layer: int, query: Tensor, keys: Tensor, values: Tensor, looks: Sequence[Look]) -> Tensor:
        """Shapes: query (R, L, H, D), keys and values (R, K, slots, D) -> (R, L, H * D)."""
        query = query * self._scale
        parts = []
        for look in looks:
            rows = slice(look.group.first, look.group.end)
            parts.append(self._attend(layer, query[rows], keys[rows], values[rows], look))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend(self, layer: int, query: Tensor, keys: Tensor, values: Tensor, look: Look) -> Tensor:
        """Heads of one group, and the positions of one row, fold into the height of a product: F = H / K * L."""
        rows, length, heads, width = query.shape
        kv_heads, shared, own = keys.shape[1], look.group.length, look.attention_mask.shape[-1]
        folded = query.unflatten(2, (kv_heads, -1)).permute(0, 2, 3, 1, 4).reshape(rows, kv_heads, -1, width)
        if length == 1 and look.group.prefix is None:  # nothing to share: one call instead of ten, all of them small
            near = (t[:, :, shared : shared + own] for t in (keys, values))
            out = F.scaled_dot_product_attention(folded, *near, attn_mask=look.attention_mask[:, 0], scale=1.0)
            return out.reshape(rows, 1, heads * width)
        own_keys, own_values = (t[:, :, shared : shared + own].flatten(0, 1) for t in (keys, values))
        scores = self._buffer(0, query, (kv_heads, rows, folded.shape[2], shared + own))
        by_position = scores[..., shared:].transpose(0, 1).unflatten(2, (-1, length))
        found = self._product(folded.flatten(0, 1), own_keys).unflatten(0, (rows, -1))
        torch.add(found.unflatten(2, (-1, length)), look.attention_mask, out=by_position)
        if (prefix := look.group.prefix) is not None:
            wide = folded.transpose(0, 1).reshape(kv_heads, -1, width)
            torch.bmm(wide, prefix.keys[layer], out=scores.flatten(1, 2)[..., :shared])
        weights = torch.softmax(scores, -1, out=self._buffer(1, query, scores.shape))
        mine = weights[..., shared:].transpose(0, 1).flatten(0, 1)
        out = torch.bmm(mine, own_values).view(folded.shape)
        if prefix is not None:
            common = torch.bmm(weights.flatten(1, 2)[..., :shared], prefix.values[layer])
            out += common.unflatten(1, (rows, -1)).transpose(0, 1)
        return out.unflatten(2, (-1, length)).permute(0, 3, 1, 2, 4).reshape(rows, length, heads * width)

    def _product(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Every query times every key of its own; the larger of the two goes first, which a thin product likes."""
        count, height, _ = queries.shape
        if height >= keys.shape[1]:
            return torch.bmm(queries, keys.mT, out=self._buffer(2, queries, (count, height, keys.shape[1])))
        return torch.bmm(keys, queries.mT, out=self._buffer(2, queries, (count, keys.shape[1], height))).mT

    def _buffer(self, which: int, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        size = math.prod(shape)
        if self._buffers[which].numel() < size or self._buffers[which].dtype != like.dtype:
            self._buffers[which] = like.new_empty(size)
        return self._buffers[which][:size].view(shape)


def worth(rows: int, prefix: int) -> bool:
    return (rows - 1) * prefix >= WORTH
