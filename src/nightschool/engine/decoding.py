"""Attention of one decode step, with the prefix that neighboring rows share read once for all of them.

One query per row against its own keys is a product too thin for the processor. Where rows share a prompt,
their queries against that prefix are one wide product; the two partial softmaxes join exactly through
their normalizers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from nightschool.models.attention import given_mask, grouped_attention

NAME = "nightschool_decoding"
WORTH = 256  # prefix positions, summed over the rows that need not read them, from which sharing pays


@dataclass(frozen=True, slots=True)
class Group:
    """Rows [first, end) of the batch; they share their first `prefix` positions; the longest has `seen`."""

    first: int
    end: int
    prefix: int
    seen: int


def enable(network: PreTrainedModel) -> None:
    """Let the network use this attention. May be called again."""
    AttentionInterface.register(NAME, decoding_attention)
    AttentionMaskInterface.register(NAME, given_mask)
    network.set_attn_implementation(NAME)


def decoding_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    groups: tuple[Group, ...] = (),
    **_unused: object,
) -> tuple[Tensor, None]:
    """`grouped_attention` when there are no groups; else one query per row, group by group.

    Shapes: query (R, H, 1, D), key and value (R, K, S, D), mask (R, 1, 1, S) additive; returns (R, 1, H, D).
    """
    if not groups or attention_mask is None:
        return grouped_attention(module, query, key, value, attention_mask, scaling)
    rows, heads, _, width = query.shape
    folded = query.reshape(rows, key.shape[1], -1, width)
    parts = []
    for group in groups:
        mine = slice(group.first, group.end)
        inputs = (folded[mine], key[mine, :, : group.seen], value[mine, :, : group.seen])
        parts.append(_attend(*inputs, attention_mask[mine, :, :, : group.seen], group.prefix, scaling))
    out = parts[0] if len(parts) == 1 else torch.cat(parts)
    return out.reshape(rows, 1, heads, width), None


def _attend(
    query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, prefix: int, scale: float | None
) -> Tensor:
    """Shapes: query (R, K, G, D), key and value (R, K, S, D), attention_mask (R, 1, 1, S) -> (R, K, G, D)."""
    rows, kv_heads, group, width = query.shape
    attention_mask = attention_mask.expand(-1, -1, group, -1)
    own, own_norm = _flash(query, key[:, :, prefix:], value[:, :, prefix:], scale, attention_mask[..., prefix:])
    if not prefix:
        return own
    wide = query.transpose(0, 1).reshape(1, kv_heads, rows * group, width)
    shared, shared_norm = _flash(wide, key[:1, :, :prefix], value[:1, :, :prefix], scale)
    shared = shared.view(kv_heads, rows, group, width).transpose(0, 1)
    shared_norm = shared_norm.view(kv_heads, rows, group).transpose(0, 1)
    share = torch.sigmoid(shared_norm - own_norm)[..., None].to(own.dtype)
    return torch.lerp(own, shared, share)


def _flash(query: Tensor, key: Tensor, value: Tensor, scale: float | None, attention_mask: Tensor | None = None) -> Any:
    """Attention and the log of its normalizer, (R, K, G, D) and (R, K, G) in float32."""
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, attn_mask=attention_mask, scale=scale
    )


def worth(rows: int, prefix: int) -> bool:
    return (rows - 1) * prefix >= WORTH


def can_share(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this build of torch has the operator that returns the normalizer, tried on a small product."""
    if device.type != "cpu":
        return False
    query, key = torch.ones(2, 1, 3, 16, dtype=dtype), torch.ones(2, 1, 5, 16, dtype=dtype)
    try:
        _, norm = _flash(query, key, key, 0.0)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    return norm.shape == (2, 1, 3) and bool(torch.allclose(norm, torch.tensor(5.0).log(), atol=1e-3))
