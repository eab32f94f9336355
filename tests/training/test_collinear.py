"""Invariant 4: where the policy is anchor and behavior policy, every objective takes the same step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nightschool.objectives.loss import Aggregation
from nightschool.training.losses.batch import TokenBatch
from nightschool.training.losses.clipped import clipped
from nightschool.training.losses.log_ratio import group_variance, squared_log_ratio
from nightschool.training.losses.reinforce import reinforce, topr

SUM = Aggregation.SEQUENCE_SUM
OWNER = torch.tensor([0, 0, 1, 2, 2, 2, 3])
REWARDS = torch.tensor([1.0, 0.0, 0.0, 1.0])
LOSSES: dict[str, Callable[[TokenBatch], Tensor]] = {
    "reinforce": lambda batch: reinforce(batch, SUM),
    "topr": lambda batch: topr(batch, SUM),
    "clipped": lambda batch: clipped(batch, aggregation=SUM),
    "squared": squared_log_ratio,
    "group_variance": lambda batch: group_variance(batch, 0.3),  # its group's mean is the baseline: 1/2
}


def gradient(name: str, moved: float = 0.0, rows: slice = slice(None), advantage: Tensor | None = None) -> Tensor:
    """By log-probabilities, of the rows chosen, `moved` away from anchor and behavior policy."""
    generator = torch.Generator().manual_seed(0)
    at = -torch.rand(7, generator=generator)
    chosen = torch.arange(4)[rows]
    tokens = torch.isin(OWNER, chosen)
    policy = (at + moved * torch.linspace(-1, 1, 7))[tokens].requires_grad_()
    notes = {"advantage": REWARDS - 0.5 if advantage is None else advantage, "beta": torch.full((4,), 0.2)}
    notes = {key: value[rows] for key, value in {**notes, "reward": REWARDS}.items()}
    given = {"reference_logprobs": at[tokens], "behavior_logprobs": at[tokens]}
    groups = torch.zeros(len(chosen), dtype=torch.long)
    owner = OWNER[tokens] - chosen[0]
    LOSSES[name](TokenBatch(policy, owner, torch.ones(len(chosen)), 7, 4, given, notes, groups)).backward()
    assert policy.grad is not None
    return policy.grad


@pytest.mark.parametrize("name", LOSSES)
def test_at_the_behavior_policy_all_gradients_are_one(name: str) -> None:
    # -A / 4 sequences on each token: -1/8 where r = 1, 1/8 where r = 0
    expected = -(REWARDS - 0.5)[OWNER] / 4
    torch.testing.assert_close(gradient(name), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["reinforce", "topr", "clipped"])
def test_no_advantage_is_no_gradient(name: str) -> None:
    assert not gradient(name, 0.3, advantage=torch.zeros(4)).any()


def test_without_advantage_the_regression_pulls_back_to_the_anchor() -> None:
    away = gradient("squared", 0.3, advantage=torch.zeros(4))
    ratios = torch.zeros(4).index_add(0, OWNER, 0.3 * torch.linspace(-1, 1, 7))
    assert torch.equal(away.sign(), ratios.sign()[OWNER])
    assert not gradient("squared", 0.0, advantage=torch.zeros(4)).any()


@pytest.mark.parametrize("name", ["reinforce", "topr", "clipped", "squared"])
def test_shares_of_two_ranks_add_up(name: str) -> None:
    """Denominators are the whole batch's: what each rank adds is its rows' part of the one gradient."""
    parts = torch.cat([gradient(name, 0.3, slice(0, 2)), gradient(name, 0.3, slice(2, 4))])
    torch.testing.assert_close(parts, gradient(name, 0.3), atol=1e-7, rtol=1e-6)
