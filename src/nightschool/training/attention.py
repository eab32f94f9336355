"""Attention over a packed tree that reads only what a branch can see.

Nodes lie in depth-first order, so a node's descendants directly follow it: node k is seen by q exactly when
k <= q < ends[k]. Queries are cut into blocks of consecutive nodes. A block's keys are the nodes that any of its rows
sees; those that every row sees come first, and only the others need a mask. Scores of one block at a time lie in the
processor's cache and are computed again for the gradient, so memory is linear in the nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from nightschool.models.attention import additive, given_mask
from nightschool.training.packing import Pack

NAME = "nightschool_tree"
BLOCK = 128


@dataclass(frozen=True, slots=True)
class Block:
    """Queries [first, end) and the nodes they look at.

    Shapes: C queries, S keys in `ranges`; `hidden` (C, S - common) additive, for the keys after the first `common`.
    """

    first: int
    end: int
    ranges: tuple[tuple[int, int], ...]
    common: int
    hidden: Tensor

    def of(self, nodes: Tensor) -> Tensor:
        """The block's keys or values, contiguous, as products like them: (K, T, D) -> (K, S, D)."""
        if len(self.ranges) == 1:
            ((first, end),) = self.ranges
            return nodes[:, first:end].contiguous()
        return torch.cat([nodes[:, first:end] for first, end in self.ranges], dim=1)

    def add(self, total: Tensor, grad: Tensor) -> None:
        """Add a gradient (K, S, D) of keys or values to those of all nodes (K, T, D)."""
        at = 0
        for first, end in self.ranges:
            total[:, first:end] += grad[:, at : at + end - first]
            at += end - first


@dataclass(frozen=True, slots=True)
class TreePlan:
    """How one pack's attention is computed; the same for every layer."""

    blocks: tuple[Block, ...]

    @classmethod
    def of(cls, one: Pack, dtype: torch.dtype, device: torch.device) -> TreePlan:
        ends = subtree_ends(one.parents)
        return cls(
            tuple(
                _block(ends, first, min(first + BLOCK, one.num_tokens), dtype, device)
                for first in range(0, one.num_tokens, BLOCK)
            )
        )


def subtree_ends(parents: np.ndarray) -> np.ndarray:
    """One past the last descendant of each node. Shapes: (T,) -> (T,), parents before their children, -1 at roots."""
    ends = list(range(1, len(parents) + 1))
    for node, parent in zip(range(len(ends) - 1, -1, -1), reversed(parents.tolist()), strict=True):
        if parent >= 0:
            ends[parent] = max(ends[parent], ends[node])
    return np.array(ends)


def attend(query: Tensor, key: Tensor, value: Tensor, plan: TreePlan) -> Tensor:
    """What each node reads. Heads that share a key head stand side by side.

    Shapes: query (K, T, G, D), already scaled, key and value (K, T, D) -> (K, T, G, D).
    """
    out = torch.empty_like(query)
    for block, rows in _rows(query, plan):
        weights = _weights(rows, block.of(key), block)
        out[:, block.first : block.end] = torch.bmm(weights, block.of(value)).view(
            out[:, block.first : block.end].shape
        )
    return out


def attend_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, plan: TreePlan
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value; `grad` and `query` as `attend` returns and takes them.

    Those of keys and values are summed in float32: a shared prefix collects from every block.
    """
    grad_query = torch.empty_like(query)
    grad_key, grad_value = (torch.zeros(key.shape, dtype=torch.float32, device=key.device) for _ in range(2))
    for block, rows in _rows(query, plan):
        keys, values = block.of(key), block.of(value)
        weights = _weights(rows, keys, block)
        mine = grad[:, block.first : block.end].reshape(rows.shape)
        block.add(grad_value, torch.bmm(weights.transpose(1, 2), mine))
        grad_weights = torch.bmm(mine, values.transpose(1, 2))
        grad_scores = torch.ops.aten._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
        grad_query[:, block.first : block.end] = torch.bmm(grad_scores, keys).view(
            grad_query[:, block.first : block.end].shape
        )
        block.add(grad_key, torch.bmm(grad_scores.transpose(1, 2), rows))
    return grad_query, grad_key.to(key.dtype), grad_value.to(value.dtype)


def tree_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    tree: TreePlan | None = None,
    **_unused: object,
) -> tuple[Tensor, None]:
    """What transformers calls per layer. Shapes: query (1, H, T, D), key and value (1, K, T, D) -> (1, T, H, D)."""
    assert tree is not None, "the model's forward must be given tree=TreePlan.of(pack)"
    _, heads, length, width = query.shape
    kv_heads = key.shape[1]
    folded = query[0].view(kv_heads, heads // kv_heads, length, width).transpose(1, 2) * (scaling or width**-0.5)
    out = _Attend.apply(folded.contiguous(), key[0], value[0], tree)
    return out.transpose(0, 1).reshape(1, length, heads, width), None  # type: ignore[union-attr]


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, plan: TreePlan) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.plan = plan
        return attend(query, key, value, plan)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value = ctx.saved_tensors
        return *attend_backward(grad_outputs[0].contiguous(), query, key, value, ctx.plan), None


def register() -> None:
    """Make the attention known to transformers under `NAME`. May be called again."""
    AttentionInterface.register(NAME, tree_attention)
    AttentionMaskInterface.register(NAME, given_mask)


def _block(ends: np.ndarray, first: int, end: int, dtype: torch.dtype, device: torch.device) -> Block:
    before = np.flatnonzero(ends[:first] > first)
    keys = np.concatenate([before, np.arange(first, end)])
    common = int((ends[before] >= end).sum())
    queries, others = np.arange(first, end)[:, None], keys[common:]
    visible = torch.from_numpy((others <= queries) & (queries < ends[others]))
    return Block(first, end, _ranges(keys), common, additive(visible.to(device), dtype))


def _rows(query: Tensor, plan: TreePlan) -> Iterator[tuple[Block, Tensor]]:
    """Each block with its queries, (K, C * G, D)."""
    for block in plan.blocks:
        yield block, query[:, block.first : block.end].flatten(1, 2)


def _weights(rows: Tensor, keys: Tensor, block: Block) -> Tensor:
    """Shapes: rows (K, C * G, D), keys (K, S, D) -> (K, C * G, S)."""
    scores = torch.bmm(rows, keys.transpose(1, 2))
    queries = block.end - block.first
    scores.view(len(scores), queries, -1, scores.shape[-1])[..., block.common :] += block.hidden[:, None]
    return scores.softmax(dim=-1)


def _ranges(columns: np.ndarray) -> tuple[tuple[int, int], ...]:
    cuts = np.flatnonzero(np.diff(columns) > 1) + 1
    return tuple((int(part[0]), int(part[-1]) + 1) for part in np.split(columns, cuts))
