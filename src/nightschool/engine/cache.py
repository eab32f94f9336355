"""Keys and values of the running rows, preallocated; and of finished sequences, kept for reuse."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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
        self._flat = [layer.view(-1, width) for layer in self.kv]
        # where in a layer a row begins, and within a row the first token of each head of keys, then of values
        self._row = heads * (capacity + 1)
        per_head = torch.arange(heads, device=device) * (capacity + 1)
        self._heads = torch.cat((per_head, per_head + max_rows * self._row))
        self._target = torch.empty(0)
        self._rows = slice(0, 0)
        self._seen = 0

    def aim(self, rows: slice, positions: Tensor, seen: int) -> None:
        """Write the next forward's tokens of `rows` at `positions` (B, L), then look at `seen` positions."""
        slots = torch.arange(rows.start, rows.stop, device=positions.device)
        self._target = (slots * self._row)[:, None, None] + positions[:, :, None] + self._heads
        self._rows, self._seen = rows, seen

    def store(self, layer: int, kv: Tensor) -> None:
        """Write one layer's keys, then values, where the cache is aimed at. Shapes: (B, L, 2 kv_heads, head_dim)."""
        self._flat[layer].index_put_((self._target,), kv)

    def active(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the rows the cache is aimed at: (B, kv_heads, capacity + 1, head_dim)."""
        return self.kv[layer, 0, self._rows], self.kv[layer, 1, self._rows]

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_args: object, **_kwargs: object):
        """What transformers' layers call. Shapes: (B, kv_heads, L, head_dim) -> (B, kv_heads, seen, head_dim)."""
        self.store(layer_idx, torch.cat((key_states, value_states), 1).transpose(1, 2))
        keys, values = self.active(layer_idx)
        return keys[:, :, : self._seen], values[:, :, : self._seen]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._seen

    def read(self, row: int, start: int, end: int) -> Tensor:
        """A copy of a row's tokens [start, end): (layers, 2, kv_heads, tokens, head_dim)."""
        return self.kv[:, :, row, :, start:end].clone()

    def prefix(self, row: int, length: int) -> Prefix:
        """A row's first `length` tokens, laid out for the products of a group."""
        kv = self.kv[:, :, row, :, :length]
        return Prefix(kv[:, 0].mT.contiguous(), kv[:, 1].contiguous())

    def write(self, row: int, pieces: Sequence[Tensor]) -> None:
        """Put pieces, one after the other, at the beginning of a row."""
        start = 0
        for piece in pieces:
            self.kv[:, :, row, :, start : start + piece.shape[3]] = piece
            start += piece.shape[3]

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


@dataclass(slots=True, eq=False)
class Node:
    """Tokens that follow those of the parent; keys and values (layers, 2, kv_heads, tokens, head_dim)."""

    ids: np.ndarray
    kv: Tensor
    parent: Node | None
    children: dict[int, Node] = field(default_factory=dict)  # by first token
    used: int = 0

    def link(self) -> None:
        if self.parent is not None:
            self.parent.children[int(self.ids[0])] = self


class PrefixStore:
    """Finished sequences as a tree, so that a common beginning is held once.

    Over `budget_bytes` the ends go first, the least recently used before others. Looking up and keeping cost what
    the sequence is long, however many are kept.
    """

    def __init__(self, budget_bytes: int, token_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self._token_bytes = token_bytes
        self._roots: dict[str, Node] = {}
        self._clock = 0

    def __len__(self) -> int:
        return len(self._leaves())

    def longest(self, adapter: str, ids: np.ndarray) -> tuple[list[Tensor], int]:
        """Keys and values of the longest kept beginning of `ids`, piece by piece, and how long it is."""
        nodes, length = self._walk(adapter, ids)
        pieces, left = [], length
        for node in nodes:
            pieces.append(node.kv[:, :, :, :left])
            left -= len(node.ids)
        return pieces, length

    def keep(self, adapter: str, ids: np.ndarray, read: Callable[[int, int], Tensor]) -> None:
        """Store what is new of a sequence; `read(start, end)` gives a copy of its keys and values.

        Edge: a sequence over the whole budget is not kept.
        """
        if len(ids) * self._token_bytes > self.budget_bytes:
            return
        nodes, length = self._walk(adapter, ids)
        if length == len(ids):
            return
        parent = nodes[-1] if nodes else self._roots.setdefault(adapter, Node(ids[:0], torch.empty(0), None))
        if (inside := length - sum(len(node.ids) for node in nodes[:-1])) < len(parent.ids):
            parent = _split(parent, inside)
        Node(ids[length:].copy(), read(length, len(ids)), parent, used=self._clock).link()
        self.used_bytes += (len(ids) - length) * self._token_bytes
        while self.used_bytes > self.budget_bytes:
            self._forget(min(self._leaves(), key=lambda leaf: leaf.used))

    def drop(self, adapter: str) -> None:
        for leaf in self._leaves(adapter):
            while leaf.parent is not None and not leaf.children:
                self._forget(leaf)
                leaf = leaf.parent

    def _walk(self, adapter: str, ids: np.ndarray) -> tuple[list[Node], int]:
        """The nodes that begin `ids`, the last of them perhaps only in part, and how many ids they cover."""
        self._clock += 1
        nodes: list[Node] = []
        length, node = 0, self._roots.get(adapter)
        while node is not None and length < len(ids) and (node := node.children.get(int(ids[length]))):
            shared = common_prefix(node.ids, ids[length:])
            node.used = self._clock
            nodes.append(node)
            length += shared
            if shared < len(node.ids):
                break
        return nodes, length

    def _leaves(self, adapter: str | None = None) -> list[Node]:
        waiting = [root for name, root in self._roots.items() if adapter in (None, name)]
        found: list[Node] = []
        while waiting:
            node = waiting.pop()
            waiting.extend(node.children.values())
            if not node.children and node.parent is not None:
                found.append(node)
        return found

    def _forget(self, leaf: Node) -> None:
        assert leaf.parent is not None
        del leaf.parent.children[int(leaf.ids[0])]
        self.used_bytes -= len(leaf.ids) * self._token_bytes


def _split(node: Node, at: int) -> Node:
    """Part a node in two; the upper one, with the lower one as its child. Copies, so that each frees its own."""
    upper = Node(node.ids[:at].copy(), node.kv[:, :, :, :at].clone(), node.parent, used=node.used)
    node.ids, node.kv, node.parent = node.ids[at:].copy(), node.kv[:, :, :, at:].clone(), upper
    upper.link()
    node.link()
    return upper


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """Number of leading elements that are equal."""
    length = min(len(a), len(b))
    different = a[:length] != b[:length]
    return int(different.argmax()) if different.any() else length
