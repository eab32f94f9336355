"""Replies that a policy draws while it is studied: few, to be looked at. Whoever serves draws in the engine."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from nightschool.models import attention
from nightschool.models.base import BaseModel
from nightschool.training.backend import Drawn

ROWS = 32  # drawn side by side

Next = Callable[[list[list[int]]], Tensor]  # logits (B, V) of what follows each of the rows


@dataclass(frozen=True, slots=True)
class Wish:
    """`longest`: tokens of a reply, the end of turn among them. The same prompts and seed give the same replies."""

    longest: int
    seed: int
    end_id: int


@torch.inference_mode()
def draw(prompts: Sequence[Sequence[int]], follow: Callable[[], Next], wish: Wish) -> list[Drawn]:
    """A reply to each prompt, from the whole distribution at temperature 1. `follow()` makes what continues a batch.

    Shapes: `follow()` is called with the whole rows first and then, row for row, with one more token each.
    """
    found: list[Drawn] = []
    for first in range(0, len(prompts), ROWS):
        rows = [list(prompt) for prompt in prompts[first : first + ROWS]]
        streams = [np.random.default_rng((wish.seed, first + place)) for place in range(len(rows))]
        found += _batch(rows, streams, follow(), wish)
    return found


def _batch(rows: list[list[int]], streams: Sequence[np.random.Generator], logits: Next, wish: Wish) -> list[Drawn]:
    made = [Drawn([], [], []) for _ in rows]
    for _ in range(wish.longest):
        logprobs = logits(rows).float().log_softmax(-1)
        uniforms = torch.tensor([stream.random() for stream in streams], dtype=torch.float64, device=logprobs.device)
        sums = logprobs.double().exp().cumsum(-1)
        chosen = torch.searchsorted(sums, (uniforms[:, None] * sums[:, -1:]), right=True).clamp_max(sums.shape[1] - 1)
        told = logprobs.gather(1, chosen)[:, 0].tolist()
        entropies = (-(logprobs.exp() * logprobs).nansum(-1)).tolist()
        for place, token in enumerate(chosen[:, 0].tolist()):
            rows[place].append(token)
            if not made[place].ids or made[place].ids[-1] != wish.end_id:
                made[place].ids.append(token)
                made[place].logprobs.append(told[place])
                made[place].entropies.append(entropies[place])
        if all(one.ids[-1] == wish.end_id for one in made):
            break
    return made


class Cached:
    """Continues a batch of rows, each token computed once; prompts are padded at their beginnings."""

    def __init__(self, base: BaseModel, route: Callable[[int], None]) -> None:
        self._base, self._route = base, route
        self._network = cast(Any, base.network)
        self._head = self._network.get_output_embeddings()
        self._cache = DynamicCache()
        known = inspect.signature(self._network.forward).parameters
        self._name = "cache" if "cache" in known else "past_key_values"
        self._padding = np.zeros(0, dtype=np.int64)
        self._seen = 0

    def __call__(self, rows: list[list[int]]) -> Tensor:
        if not self._seen:
            longest = max(map(len, rows))
            self._padding = np.array([longest - len(row) for row in rows])
        ids = np.array([[0] * pad + row for pad, row in zip(self._padding.tolist(), rows, strict=True)])[
            :, self._seen :
        ]
        places = np.arange(self._seen, self._seen + ids.shape[1])
        keys = np.arange(places[-1] + 1)
        look = (keys <= places[:, None]) & (keys >= self._padding[:, None, None])
        device = self._base.device
        self._network.set_attn_implementation(attention.NAME)
        self._route(len(rows))
        hidden = self._network.base_model(
            input_ids=torch.from_numpy(ids).to(device),
            attention_mask=attention.additive(torch.from_numpy(look[:, None]).to(device), self._base.dtype),
            position_ids=torch.from_numpy((places - self._padding[:, None]).clip(0)).to(device),
            use_cache=True,
            **{self._name: self._cache},
        ).last_hidden_state
        self._seen = int(keys[-1]) + 1
        return self._head(hidden[:, -1])
