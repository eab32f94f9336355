"""PPO with a critic: the clipped policy loss, and the regression of a critic's values on returns."""

from __future__ import annotations

import torch
from torch import Tensor

from nightschool.objectives.clipping import CLIP, Clip
from nightschool.objectives.loss import VALUES, Aggregation
from nightschool.training.losses.batch import TokenBatch
from nightschool.training.losses.clipped import clipped


def ppo(
    batch: TokenBatch,
    clip: Clip = CLIP,
    weighted: bool = False,
    value_weight: float = 0.5,
    value_clip: float | None = 0.2,
    aggregation: Aggregation = Aggregation.TOKEN_MEAN,
) -> Tensor:
    """Policy loss + `value_weight` * value loss, each reduced alike. Both models learn from one number, and neither
    gets a gradient of the other's part.

    Implements: Schulman et al., arXiv:1707.06347, Eq. 9 without the entropy.
    """
    policy = clipped(batch, clip, weighted=weighted, aggregation=aggregation)
    return policy + value_weight * batch.reduced(value_losses(batch, value_clip), aggregation)


def value_losses(batch: TokenBatch, value_clip: float | None = 0.2) -> Tensor:
    """max((V - R)^2, (V_0 + clip(V - V_0) - R)^2) / 2 per token: (N,). V_0 are `reference_values`, R `return`."""
    values, returns = batch.output(VALUES), batch.given("return")
    errors = (values - returns).square()
    if value_clip is not None:
        old = batch.given("reference_values")
        near = old + (values - old).clamp(-value_clip, value_clip)
        errors = torch.maximum(errors, (near - returns).square())
    return errors / 2
