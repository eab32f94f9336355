"""Attention over a packed tree that reads only what a branch can see.

A dense mask makes every token of a pack look at every other before most are masked away; with sixteen
sessions on one system prompt that is two thirds of a training step. Here queries are cut into blocks of
`BLOCK` consecutive nodes, and each block attends to the union of its nodes' ancestors, a handful of
contiguous ranges in depth-first order. Blocks with similarly many keys share one call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from nightschool.models.attention import additive, given_mask
from nightschool.training.packing import Pack

NAME = "nightschool_tree"
BLOCK = 64
ROUND_KEYS = 64
MAX_SCORES = 16_000_000  # per call: 32 MB in bfloat16 that every layer keeps

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Query blocks that share a call. Shapes: B blocks, S keys at most.

    `blocks[b]` is a block's number, `ranges[b]` the nodes it looks at, `masks` (B, 1, BLOCK, S) boolean
    until `TreePlan.of` makes it additive.
    """

    blocks: tuple[int, ...]
    ranges: tuple[Ranges, ...]
    num_keys: int
    attention_mask: Tensor


@dataclass(frozen=True, slots=True)
class TreePlan:
    """How one pack's attention is computed; the same for every layer."""

    num_nodes: int
    num_blocks: int
    buckets: tuple[Bucket, ...]

    @classmethod
    def of(cls, one: Pack, dtype: torch.dtype, device: torch.device) -> TreePlan:
        ancestors = one.tree_mask()
        count = -(-one.num_tokens // BLOCK)
        seen = [ancestors[block * BLOCK : (block + 1) * BLOCK] for block in range(count)]
        keys = [np.flatnonzero(rows.any(axis=0)) for rows in seen]
        by_size: dict[int, list[int]] = {}
        for block, columns in enumerate(keys):
            by_size.setdefault(_size_class(len(columns)), []).append(block)
        buckets = []
        for blocks in by_size.values():
            width = max(len(keys[block]) for block in blocks)
            visible = np.zeros((len(blocks), 1, BLOCK, width), dtype=bool)
            visible[:, :, :, 0] = True  # queries beyond the last node must see something; nobody reads them
            for place, block in enumerate(blocks):
                rows = seen[block][:, keys[block]]
                visible[place, 0, : len(rows), 0] = rows[:, 0]
                visible[place, 0, : len(rows), : rows.shape[1]] = rows
            ranges = tuple(_ranges(keys[block]) for block in blocks)
            buckets.append(Bucket(tuple(blocks), ranges, width, additive(torch.from_numpy(visible).to(device), dtype)))
        return cls(one.num_tokens, count, tuple(buckets))


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
    """What transformers calls per layer. Shapes: query (1, H, T, D), key and value (1, K, T, D) -> (1, T, H, D).

    Heads that share a key head are folded into the query length.
    """
    assert tree is not None, "the model's forward must be given tree=TreePlan.of(pack)"
    _, heads, length, width = query.shape
    kv_heads = key.shape[1]
    group = heads // kv_heads
    rows = query[0].transpose(0, 1)
    padding = tree.num_blocks * BLOCK - length
    if padding:
        rows = nn.functional.pad(rows, (0, 0, 0, 0, 0, padding))
    # (blocks, BLOCK, H, D) -> (blocks, K, group * BLOCK, D)
    queries = rows.view(tree.num_blocks, BLOCK, kv_heads, group, width).permute(0, 2, 3, 1, 4)
    queries = queries.reshape(tree.num_blocks, kv_heads, group * BLOCK, width)
    parts, order = [], []
    for bucket in tree.buckets:
        k = _GatherKeys.apply(key[0], bucket)
        v = _GatherKeys.apply(value[0], bucket)
        mine = queries[list(bucket.blocks)] if len(tree.buckets) > 1 else queries
        parts.append(_attend(mine, k, v, bucket.attention_mask, scaling or width**-0.5))
        order += bucket.blocks
    out = torch.cat(parts)
    if len(parts) > 1:
        out = out[np.argsort(order).tolist()]
    out = out.view(tree.num_blocks, kv_heads, group, BLOCK, width).permute(0, 3, 1, 2, 4)
    return out.reshape(1, -1, heads, width)[:, :length], None


def _attend(query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, scaling: float) -> Tensor:
    """Shapes: query (B, K, group * BLOCK, D), key and value (B, K, S, D), mask (B, 1, BLOCK, S)."""
    batch, kv_heads, length, _ = query.shape
    if batch * kv_heads * length * key.shape[2] <= MAX_SCORES:
        return _Attend.apply(query, key, value, attention_mask, scaling)  # type: ignore[return-value]
    repeated = attention_mask.repeat(1, 1, length // BLOCK, 1)
    return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=repeated, scale=scaling)


class _Attend(torch.autograd.Function):
    """Attention by plain matrix products that keeps its weights for the gradient.

    With the few hundred keys of a block it takes 0.4 of the time of the library's tiled kernel on a CPU; that
    one, which keeps nothing, takes over where the weights would fill the memory.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, scaling: float) -> Tensor:
        batch, kv_heads, length, _ = query.shape
        keys = key.shape[2]
        scores = torch.bmm(query.flatten(0, 1) * scaling, key.flatten(0, 1).transpose(1, 2))
        scores.view(batch, kv_heads, length // BLOCK, BLOCK, keys).add_(attention_mask[:, :, None])
        weights = scores.softmax(dim=-1)
        ctx.save_for_backward(query, key, value, weights)
        ctx.scaling = scaling
        return torch.bmm(weights, value.flatten(0, 1)).view(query.shape)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, weights = ctx.saved_tensors
        grad = grad_outputs[0].flatten(0, 1)
        grad_weights = torch.bmm(grad, value.flatten(0, 1).transpose(1, 2))
        grad_scores = torch.ops.aten._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
        return (
            (torch.bmm(grad_scores, key.flatten(0, 1)) * ctx.scaling).view(query.shape),
            (torch.bmm(grad_scores.transpose(1, 2), query.flatten(0, 1)) * ctx.scaling).view(key.shape),
            torch.bmm(weights.transpose(1, 2), grad).view(value.shape),
            None,
            None,
        )


class _GatherKeys(torch.autograd.Function):
    """(K, T, D) -> (B, K, S, D): each block's key ranges side by side, zeros after them.

    The gradient adds each range back where it came from, in float32: a shared prefix collects from
    every block.
    """

    @staticmethod
    def forward(ctx: Any, source: Tensor, bucket: Bucket) -> Tensor:
        ctx.bucket, ctx.shape, ctx.dtype = bucket, source.shape, source.dtype
        kv_heads, _, width = source.shape
        out = source.new_zeros(len(bucket.blocks), kv_heads, bucket.num_keys, width)
        for place, ranges in enumerate(bucket.ranges):
            at = 0
            for first, end in ranges:
                out[place, :, at : at + end - first] = source[:, first:end]
                at += end - first
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        (grad,) = grad_outputs
        total = torch.zeros(ctx.shape, dtype=torch.float32, device=grad.device)
        for place, ranges in enumerate(ctx.bucket.ranges):
            at = 0
            for first, end in ranges:
                total[:, first:end] += grad[place, :, at : at + end - first]
                at += end - first
        return total.to(ctx.dtype), None


def register() -> None:
    """Make the attention known to transformers under `NAME`. May be called again."""
    AttentionInterface.register(NAME, tree_attention)
    AttentionMaskInterface.register(NAME, given_mask)


def _size_class(num_keys: int) -> int:
    """Blocks of one class are padded to its longest: at most about a quarter of the keys is padding."""
    return int(np.ceil(np.log(max(num_keys, ROUND_KEYS)) / np.log(1.35)))


def _ranges(columns: np.ndarray) -> Ranges:
    cuts = np.flatnonzero(np.diff(columns) > 1) + 1
    return tuple((int(part[0]), int(part[-1]) + 1) for part in np.split(columns, cuts))
