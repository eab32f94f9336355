"""The network as the scheduler sees it: fill rows, score rows, decode one token per row."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nightschool.engine import decoding
from nightschool.engine.cache import RowCache, common_prefix
from nightschool.engine.decoding import Group, Prefix, looks_of
from nightschool.engine.layers import Layers, layers_of
from nightschool.engine.projections import project
from nightschool.engine.sampling import Sampling
from nightschool.models.attention import additive
from nightschool.models.base import BaseModel
from nightschool.models.lora import LoraModel

FILL_TOKENS = 512  # per forward: bounds the memory of activations and scores; more is not faster
HEAD = 64  # tokens that rows must have in common to be looked at for more
AGREED = 0.1  # relative; two orders of the same sums in bfloat16 differ by 0.02
SCORE_TOKENS = 256  # logits of every position are needed at once: 256 x 49,152 float32 are 50 MB


@dataclass(slots=True, eq=False)
class Row:
    """One running sequence. The cache holds the first `computed` of `ids`; the last is never among them."""

    adapter: str
    ids: list[int]
    prompt: np.ndarray  # all but the last prompt id, which takes part in the first decode step
    sampling: Sampling
    slot: int = -1
    computed: int = 0
    prompt_scores: list[Tensor] = field(default_factory=list)

    @property
    def missing(self) -> int:
        return len(self.ids) - 1 - self.computed

    @property
    def head(self) -> bytes:
        """What decides whether rows stand together."""
        return self.prompt[:HEAD].tobytes()


class Runner:
    """Runs forwards over cache rows; `num_tokens` counts the tokens sent through."""

    def __init__(self, base: BaseModel, max_rows: int, capacity: int) -> None:
        self.base = base
        self.lora = LoraModel(base.network)
        self._projections = project(base.network, self.lora)
        self._grouped: list[Row] = []
        self._shares: list[tuple[int, int, int, Prefix | None]] = []
        self._prefixes: dict[tuple[str, bytes], Prefix] = {}
        self.cache = RowCache(base.network.config, max_rows, capacity, base.dtype, base.device)
        self.num_tokens = 0
        names = inspect.signature(base.network.forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._head: Any = base.network.get_output_embeddings()
        layers = layers_of(base.network, self.cache)
        self._layers = layers if layers and self._agrees(layers) else None

    def load(self, name: str, folder: Path) -> None:
        """Load an adapter in the network's number format; may run beside a forward that does not use it."""
        self.lora.load(name, folder, self.base.dtype)
        for projection in self._projections:
            projection.add(name)

    def unload(self, name: str) -> None:
        self.lora.unload(name)
        for projection in self._projections:
            projection.drop(name)
        self._grouped, self._prefixes = [], {}

    def fill(self, rows: list[Row]) -> None:
        """Compute all but the last id of rows that lie in adjacent slots, without logits."""
        while any(row.missing for row in rows):
            most = max(1, FILL_TOKENS // len(rows))
            self._forward(rows, [min(row.missing, most) for row in rows])
        self._grouped = []  # now that more is computed, more may be shared

    def score(self, rows: list[Row]) -> None:
        """Like `fill`, and keep the log-probabilities of the ids after the first."""
        while any(row.missing for row in rows):
            most = max(1, SCORE_TOKENS // len(rows))
            starts, counts = [row.computed for row in rows], [min(row.missing, most) for row in rows]
            logits = self._head(self._forward(rows, counts)).float()
            for line, (row, start, count) in enumerate(zip(rows, starts, counts, strict=True)):
                following = torch.tensor(row.ids[start + 1 : start + 1 + count], device=logits.device)
                part = logits[line, :count]
                row.prompt_scores.append(part.gather(1, following[:, None])[:, 0] - part.logsumexp(-1))
        self._grouped = []

    def decode(self, rows: list[Row]) -> Tensor:
        """The logits (R, V) that follow the last id of each row; rows lie in slots 0..R-1 in order.

        Edge: what a row still misses is computed along with its last id.
        """
        counts = [row.missing + 1 for row in rows]
        hidden = self._forward(rows, counts)
        if max(counts) > 1:
            self._grouped = []
            last = torch.tensor(counts, device=hidden.device) - 1
            hidden = hidden[torch.arange(len(rows), device=hidden.device), last][:, None]
        return self._head(hidden)[:, -1]

    def _groups(self, rows: list[Row], counts: np.ndarray) -> list[Group]:
        """Neighbors that begin alike, with the prompt prefix that all of them share and have computed."""
        if rows != self._grouped:
            self._grouped, before, self._prefixes = rows, self._prefixes, {}
            self._shares = []
            for first, end in families(rows):
                length = shared_prefix(rows[first:end])
                key = (rows[first].adapter, rows[first].prompt[:length].tobytes())
                if length:
                    self._prefixes[key] = before.get(key) or self.cache.prefix(rows[first].slot, length)
                self._shares.append((first, end, length, self._prefixes.get(key)))
        seen = counts + [row.computed for row in rows]
        return [
            Group(first, end, length, int(seen[first:end].max()), prefix) for first, end, length, prefix in self._shares
        ]

    def _forward(self, rows: list[Row], num_ids: list[int]) -> Tensor:
        """Hidden states of the next `num_ids[i]` uncomputed ids of each row, padded to the longest.

        Padding repeats a row's last position; its keys go to the cache's spare slot.
        """
        device = self.base.device
        starts, counts = np.array([row.computed for row in rows]), np.array(num_ids)
        length = max(num_ids)
        steps = np.arange(length)
        real = steps < counts[:, None]
        positions = starts[:, None] + np.minimum(steps, counts[:, None] - 1).clip(0)
        seen = int((starts + counts).max())
        ids = np.zeros((len(rows), length), np.int64)
        for line, row in enumerate(rows):
            ids[line, : counts[line]] = row.ids[row.computed : row.computed + counts[line]]
        where = torch.from_numpy(positions).to(device)
        writes = torch.from_numpy(np.where(real, positions, self.cache.capacity)).to(device)
        self.cache.aim(slice(rows[0].slot, rows[0].slot + len(rows)), writes, seen)
        self.lora.routing.spans = [span for span in spans(rows) if span[0]]
        tokens = torch.from_numpy(ids).to(device)
        if self._layers:
            looks = looks_of(self._groups(rows, counts), where, self.cache.capacity + 1, self.base.dtype)
            hidden = self._layers(tokens, where, looks)
        else:
            hidden = self._modules(tokens, where, seen)
        for row, count in zip(rows, num_ids, strict=True):
            row.computed += count
        self.num_tokens += sum(num_ids)
        return hidden

    def _modules(self, ids: Tensor, positions: Tensor, seen: int) -> Tensor:
        """The same through transformers' own modules, for networks that `Layers` does not know."""
        look = torch.arange(seen, device=ids.device) <= positions[:, None, :, None]
        return self.base.network.base_model(
            input_ids=ids,
            attention_mask=additive(look, self.base.dtype),
            position_ids=positions,
            use_cache=True,
            **{self._cache_name: self.cache},
        ).last_hidden_state

    @torch.inference_mode()
    def _agrees(self, layers: Layers) -> bool:
        """Whether layers and modules compute the same of a few tokens, within the number format's rounding."""
        positions = torch.arange(8, device=self.base.device)[None]
        ids = (positions + 1) * (self.base.network.config.vocab_size // 9)
        self.cache.aim(slice(0, 1), positions, 8)
        expected = self._modules(ids, positions, 8).float()
        looks = looks_of((Group(0, 1, 0, 8),), positions, self.cache.capacity + 1, self.base.dtype)
        found = layers(ids, positions, looks).float()
        return bool((found - expected).norm() <= AGREED * expected.norm())


def spans(rows: list[Row]) -> list[tuple[str, int, int]]:
    """Runs of neighbors with one adapter, as (adapter, first, end)."""
    found: list[tuple[str, int, int]] = []
    for line, row in enumerate(rows):
        if found and found[-1][0] == row.adapter:
            found[-1] = (row.adapter, found[-1][1], line + 1)
        else:
            found.append((row.adapter, line, line + 1))
    return found


def families(rows: list[Row]) -> list[tuple[int, int]]:
    """Runs of neighbors of one adapter and one beginning, as (first, end); rows without a companion together."""
    found: list[tuple[int, int]] = []
    alone = False
    for _, members in groupby(range(len(rows)), lambda line: (rows[line].adapter, rows[line].head)):
        first, *others = members
        if alone and not others:
            found[-1] = (found[-1][0], first + 1)
        else:
            found.append((first, first + 1 + len(others)))
        alone = not others
    return found


def shared_prefix(rows: list[Row]) -> int:
    """Computed prompt tokens that all rows begin with; 0 where adapters differ or reading them once does not pay."""
    if any(row.adapter != rows[0].adapter for row in rows):
        return 0
    length = min(min(row.computed, common_prefix(rows[0].prompt, row.prompt)) for row in rows)
    length -= length % decoding.STRIDE
    return length if decoding.worth(len(rows), length) else 0
