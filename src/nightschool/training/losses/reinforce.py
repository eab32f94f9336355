"""Policy gradients without a clip: advantage times likelihood. `annotations`: `advantage`, per sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from nightschool.objectives.loss import Aggregation
from nightschool.training.losses.batch import TokenBatch


def reinforce(batch: TokenBatch, aggregation: Aggregation, max_length: float | None = None) -> Tensor:
    """-A log pi. Off-policy it has no lower bound: what is pushed down is pushed down forever."""
    advantages = batch.noted("advantage")[batch.rows]
    return batch.reduced(-advantages * batch.logprobs, aggregation, max_length)


def topr(batch: TokenBatch, aggregation: Aggregation, max_length: float | None = None) -> Tensor:
    """-A log pi where A > 0, else -sg(min(1, pi / pi_b)) A log pi with the ratio of the whole sequence.

    Implements: Le Roux et al., arXiv:2503.14286 (unverified). The value means nothing, its gradient does.
    """
    advantage = batch.noted("advantage")
    importance_ratio = batch.log_ratios("behavior_logprobs").detach().clamp(max=0.0).exp()
    kept = torch.where(advantage > 0, advantage, importance_ratio * advantage)
    return batch.reduced(-kept[batch.rows] * batch.logprobs, aggregation, max_length)
