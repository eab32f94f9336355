"""Attention for packed trees and for decoding, as one function that transformers calls by name.

Grouped query heads are folded into the query length, so keys and values are read once instead of being
copied per head. Shapes: query (B, H, Q, D), key and value (B, K, S, D) with H = K * group; mask (B or 1, 1,
Q, S), True where a query may look, broadcast over heads.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

NAME = "nightschool"


def grouped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **_unused: object,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention with heads of one group folded into the query length.

    Returns (B, Q, H, D) as transformers expects, and no weights.
    """
    batch, heads, length, width = query.shape
    kv_heads = key.shape[1]
    group = heads // kv_heads
    folded = query.reshape(batch, kv_heads, group * length, width)
    if attention_mask is not None and group > 1:
        # (B, 1, Q, S) -> (B, 1, group * Q, S): head-major order, as the reshape above
        attention_mask = (
            attention_mask.repeat(1, 1, group, 1) if length > 1 else attention_mask.expand(-1, -1, group, -1)
        )
    out = nn.functional.scaled_dot_product_attention(folded, key, value, attn_mask=attention_mask, scale=scaling)
    return out.reshape(batch, heads, length, width).transpose(1, 2), None


def given_mask(*_args: object, attention_mask: Tensor | None = None, **_kwargs: object) -> Tensor | None:
    """Callers hand over the finished mask; nothing is derived from it."""
    return attention_mask


def register() -> None:
    """Make the attention known to transformers under `NAME`. May be called again."""
    AttentionInterface.register(NAME, grouped_attention)
    AttentionMaskInterface.register(NAME, given_mask)


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Boolean (True = may look) to additive form in `dtype`: 0 or the most negative number."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, torch.finfo(dtype).min)
