"""From logits to tokens: one uniform number per row and the inverse of the cumulative distribution.

`torch.multinomial` draws one exponential per vocabulary entry; a single uniform and a search in two-level
sums costs one pass over the row and makes a token depend on nothing but its own row and random stream.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

BLOCK = 256


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one request wants its tokens. Temperature 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 16
    stop: tuple[str, ...] = ()
    seed: int | None = None
    ignore_eos: bool = False
    top_logprobs: int = 0

    def stream(self, choice: int) -> np.random.Generator:
        """The random stream of one choice; without a seed, fresh."""
        return np.random.default_rng(None if self.seed is None else (self.seed % 2**64, choice))


@dataclass(frozen=True, slots=True)
class Drawn:
    """What one step drew. Shapes: ids (R,), logprobs (R,); top_* (R, k) or None."""

    ids: list[int]
    logprobs: list[float]
    top_ids: list[list[int]] | None = None
    top_logprobs: list[list[float]] | None = None


def draw(logits: Tensor, settings: list[Sampling], uniforms: list[float]) -> Drawn:
    """Draw one token per row from softmax(logits / temperature), cut to `top_p`.

    Shapes: logits (R, V); settings and uniforms of length R, uniforms in [0, 1).
    Edge: a greedy row takes the largest logit and reports its log-probability at temperature 1.
    """
    device = logits.device
    weights = logits.to(torch.float32, copy=True)
    if any(s.temperature not in (0, 1) for s in settings):
        weights /= torch.tensor([s.temperature or 1.0 for s in settings], device=device)[:, None]
    weights.sub_(weights.amax(-1, keepdim=True)).exp_()
    cut = [row for row, s in enumerate(settings) if s.top_p < 1 and s.temperature > 0]
    if cut:
        weights[cut] = nucleus(weights[cut], _floats([settings[row].top_p for row in cut], device))
    ids, total = invert(weights, _floats(uniforms, device))
    greedy = [row for row, s in enumerate(settings) if s.temperature == 0]
    if greedy:
        ids[greedy] = weights[greedy].argmax(-1)
    logprobs = weights.gather(1, ids[:, None]).double().log() - total.log()
    count = max(s.top_logprobs for s in settings)
    if not count:
        return Drawn(ids.tolist(), logprobs[:, 0].tolist())
    best = weights.topk(count)
    best_logprobs = best.values.double().log() - total.log()
    return Drawn(ids.tolist(), logprobs[:, 0].tolist(), best.indices.tolist(), best_logprobs.tolist())


def nucleus(weights: Tensor, top_p: Tensor) -> Tensor:
    """Keep the fewest largest weights that reach `top_p` of a row's sum; the others become 0."""
    order = weights.sort(dim=-1, descending=True)
    share = order.values.double().cumsum(-1)
    before = share - order.values
    kept = order.values.masked_fill(before >= top_p[:, None] * share[:, -1:], 0.0)
    return torch.zeros_like(weights).scatter_(1, order.indices, kept)


def invert(weights: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Where `uniforms` falls in each row's cumulative weights, and the row sums in float64.

    Shapes: weights (R, V) float32, uniforms (R,) float64 -> ids (R,), totals (R, 1).
    """
    rows, width = weights.shape
    padded = torch.nn.functional.pad(weights, (0, -width % BLOCK)) if width % BLOCK else weights
    blocks = padded.view(rows, -1, BLOCK)
    ends = blocks.sum(-1).double().cumsum(-1)
    goal = _inside(uniforms[:, None] * ends[:, -1:], ends)
    block = torch.searchsorted(ends, goal, right=True)
    chosen = blocks.gather(1, block[:, :, None].expand(-1, -1, BLOCK))[:, 0].double().cumsum(-1)
    start = torch.where(block > 0, ends.gather(1, (block - 1).clamp_min(0)), 0.0)
    inner = torch.searchsorted(chosen, _inside(goal - start, chosen), right=True)
    return (block * BLOCK + inner)[:, 0], ends[:, -1:]


def _inside(goal: Tensor, sums: Tensor) -> Tensor:
    """Rounding must not carry a goal past the last positive weight."""
    return torch.minimum(goal, torch.nextafter(sums[:, -1:], torch.zeros_like(sums[:, -1:])))


def _floats(values: list[float], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=device)
