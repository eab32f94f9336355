from __future__ import annotations

import numpy as np
import pytest
import torch
from rollouts import priced, rollout, slopes

from nightschool.errors import InputError, RefusedError
from nightschool.objectives.mirror import MIRROR, MirrorRule
from nightschool.objectives.var_grad import VAR_GRAD, VarGradRule
from nightschool.training.losses.batch import TokenBatch
from nightschool.training.losses.log_ratio import group_variance

REWARDS = np.array([1.0, 0.0, 0.0, 0.0])
LOG_RATIOS = np.array([2.0, -1.0, 0.5, 0.0])


def group(name: str = "g") -> list:
    return [rollout(float(reward), group=name) for reward in REWARDS]


def test_golden_g6b() -> None:
    # beta 0.1: log Z = mean(10 - 2, 1, -0.5, 0) = 2.125; residuals LR - r / beta + log Z
    log_z = (REWARDS / 0.1 - LOG_RATIOS).mean()
    residuals = LOG_RATIOS - REWARDS / 0.1 + log_z
    assert log_z == pytest.approx(2.125)
    assert residuals.tolist() == pytest.approx([-5.875, 1.125, 2.625, 2.125])
    assert (residuals**2).mean() == pytest.approx(11.796875)
    loss, logprobs = priced(VAR_GRAD, VarGradRule(0.1), group(), [[x] for x in LOG_RATIOS], [[0.0]] * 4)
    assert loss.item() * 2 / 0.1 == pytest.approx(11.796875, rel=1e-6)
    assert slopes(logprobs) == pytest.approx((0.1 * residuals / 4).tolist(), abs=1e-6)


def test_groups_do_not_mix() -> None:
    both = [*group("a"), *group("b")]
    policy = [[x] for x in (*LOG_RATIOS, *(LOG_RATIOS * 3))]
    alone = [priced(VAR_GRAD, VarGradRule(), group(), part, [[0.0]] * 4)[0].item() for part in (policy[:4], policy[4:])]
    loss, _ = priced(VAR_GRAD, VarGradRule(), both, policy, [[0.0]] * 8)
    assert loss.item() == pytest.approx(sum(alone) / 2, rel=1e-6)


def test_at_the_anchor_it_is_the_policy_gradient_with_the_groups_mean() -> None:
    zero = [[0.0]] * 4
    _, variance = priced(VAR_GRAD, VarGradRule(0.1), group(), zero, zero)
    _, squared = priced(MIRROR, MirrorRule(0.1), group(), zero, zero)
    assert slopes(variance) == pytest.approx(slopes(squared), abs=1e-6)


def test_the_optimum_has_no_variance() -> None:
    # pi* = pi_b exp(r / beta) / Z: LR = r / beta - log Z, whatever log Z is
    loss, logprobs = priced(VAR_GRAD, VarGradRule(0.5), group(), [[r / 0.5 - 1.7] for r in REWARDS], [[0.0]] * 4)
    assert loss.item() == pytest.approx(0.0, abs=1e-10)
    assert slopes(logprobs) == pytest.approx([0.0] * 4, abs=1e-6)


def test_gradient_agrees_with_finite_differences() -> None:
    def value(x: torch.Tensor) -> torch.Tensor:
        owner = torch.tensor([0, 0, 1, 2, 3])
        notes = {"reward": torch.tensor([1.0, 0.0, 0.3, 0.2]).double()}
        weights = torch.tensor([1.0, 0.3, 2.0, 1.0]).double()
        given = {"reference_logprobs": torch.tensor([-0.3, -0.8, -0.1, -0.2, -2.0]).double()}
        return group_variance(TokenBatch(x, owner, weights, 5, 4, given, notes, torch.tensor([0, 0, 1, 1])), 0.25)

    at = torch.tensor([-0.5, -0.6, -0.9, -0.4, -1.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(value, at)


def test_a_group_of_one_is_refused_before_and_in_the_batch() -> None:
    with pytest.raises(RefusedError, match="group of one"):
        VAR_GRAD.annotate([rollout(1.0)], VarGradRule())
    notes = {"reward": torch.ones(2)}
    batch = TokenBatch(
        torch.zeros(2), torch.arange(2), torch.ones(2), 2, 2, {"reference_logprobs": torch.zeros(2)}, notes,
        torch.tensor([0, 1]),
    )  # fmt: skip
    with pytest.raises(InputError, match="stands alone"):
        group_variance(batch, 0.1)
