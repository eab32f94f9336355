"""Keys and values of the running rows, preallocated; and of finished sequences, kept for reuse."""

from __future__ import annotations

import math
import mmap
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import Cache, PreTrainedConfig

from nightschool.engine.decoding import Prefix

MIN_SHARED = 8  # a shorter common prefix is cheaper to compute than to look up and copy


class RowCache(Cache):
    """Keys and values of up to `max_rows` sequences of up to `capacity` tokens.

    Active rows lie compact at the front. Before a forward, `aim` says which rows and positions it
    writes and how far it may look; the model's layers then call `update`. One slot behind the
    capacity takes the writes of padding.

    Shapes: kv (layers, 2, rows, kv_heads, capacity + 1, head_dim).
    """

    def __init__(
        self, config: PreTrainedConfig, max_rows: int, capacity: int, dtype: torch.dtype, device: torch.device
    ):
        super().__init__(layers=[])
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        heads = config.num_key_value_heads
        self.max_rows, self.capacity = max_rows, capacity
        self.kv = _zeros((config.num_hidden_layers, 2, max_rows, heads, capacity + 1, width), dtype, device)
        self.token_bytes = 2 * config.num_hidden_layers * heads * width * dtype.itemsize
        self._flat = [(layer[0].view(-1, width), layer[1].view(-1, width)) for layer in self.kv]
        self._strides = (heads * (capacity + 1), capacity + 1)
        self._heads = torch.arange(heads, device=device)
        self._target = torch.empty(0)
        self._rows = slice(0, 0)
        self._seen = 0

    def aim(self, rows: slice, positions: Tensor, seen: int) -> None:
        """Write the next forward's tokens of `rows` at `positions` (B, L), then look at `seen` positions."""
        slots = torch.arange(rows.start, rows.stop, device=positions.device)
        per_row, per_head = self._strides
        self._target = (slots * per_row)[:, None, None] + positions[:, :, None] + self._heads * per_head
        self._rows, self._seen = rows, seen

    def store(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Write one layer's keys and values where the cache is aimed at. Shapes: (B, L, kv_heads, head_dim)."""
        for flat, new in zip(self._flat[layer], (keys, values), strict=True):
            flat.index_put_((self._target,), new)

    def active(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the rows the cache is aimed at: (B, kv_heads, capacity + 1, head_dim)."""
        return self.kv[layer, 0, self._rows], self.kv[layer, 1, self._rows]

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_args: object, **_kwargs: object):
        """What transformers' layers call. Shapes: (B, kv_heads, L, head_dim) -> (B, kv_heads, seen, head_dim)."""
        self.store(layer_idx, key_states.transpose(1, 2), value_states.transpose(1, 2))
        keys, values = self.active(layer_idx)
        return keys[:, :, : self._seen], values[:, :, : self._seen]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._seen

    def read(self, row: int, length: int) -> Tensor:
        """A copy of a row's first `length` tokens: (layers, 2, kv_heads, length, head_dim)."""
        return self.kv[:, :, row, :, :length].clone()

    def prefix(self, row: int, length: int) -> Prefix:
        """A row's first `length` tokens, laid out for the products of a group."""
        kv = self.kv[:, :, row, :, :length]
        return Prefix(kv[:, 0].mT.contiguous(), kv[:, 1].contiguous())

    def write(self, row: int, prefix: Tensor) -> None:
        self.kv[:, :, row, :, : prefix.shape[3]] = prefix

    def view(self, row: int, length: int) -> Tensor:
        return self.kv[:, :, row, :, :length]

    def move(self, sources: list[int], targets: list[int], length: int) -> None:
        """Row sources[i] becomes row targets[i], all at once, up to `length` tokens."""
        part = self.kv[:, :, :, :, :length]
        part[:, :, targets] = part[:, :, sources]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros; on the CPU as untouched small pages, so that memory is used only where rows are written.

    Huge pages would fill up at the first token of each row: 3 GB for 32 rows of 4,096 tokens of a 135M model.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    pages = mmap.mmap(-1, math.prod(shape) * dtype.itemsize)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype).view(shape)


@dataclass(frozen=True, slots=True)
class Kept:
    """A finished sequence: its adapter, its ids and their keys and values."""

    adapter: str
    ids: np.ndarray
    kv: Tensor


class PrefixStore:
    """Finished sequences, the least recently used dropped first when over `budget_bytes`."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self._kept: OrderedDict[int, Kept] = OrderedDict()
        self._next = 0

    def __len__(self) -> int:
        return len(self._kept)

    def longest(self, adapter: str, ids: np.ndarray) -> tuple[Tensor | None, int]:
        """The kept sequence that shares the longest prefix with `ids`, and how long it is."""
        best, length = -1, 0
        for key, kept in self._kept.items():
            if kept.adapter == adapter and (shared := common_prefix(kept.ids, ids)) > length:
                best, length = key, shared
        if best < 0:
            return None, 0
        self._kept.move_to_end(best)
        return self._kept[best].kv[:, :, :, :length], length

    def keep(self, adapter: str, ids: np.ndarray, kv: Tensor) -> None:
        """Store a sequence; it replaces those it extends."""
        for key, kept in list(self._kept.items()):
            if kept.adapter == adapter and common_prefix(kept.ids, ids) == len(kept.ids):
                self._forget(key)
        self._kept[self._next] = Kept(adapter, ids, kv)
        self._next += 1
        self.used_bytes += kv.nbytes
        while self.used_bytes > self.budget_bytes:
            self._forget(next(iter(self._kept)))

    def covers(self, adapter: str, ids: np.ndarray) -> bool:
        """Whether a kept sequence already begins with `ids`."""
        return any(k.adapter == adapter and common_prefix(k.ids, ids) == len(ids) for k in self._kept.values())

    def drop(self, adapter: str) -> None:
        for key in [key for key, kept in self._kept.items() if kept.adapter == adapter]:
            self._forget(key)

    def _forget(self, key: int) -> None:
        self.used_bytes -= self._kept.pop(key).kv.nbytes


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """Number of leading elements that are equal."""
    length = min(len(a), len(b))
    different = a[:length] != b[:length]
    return int(different.argmax()) if different.any() else length
