from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from loss_batches import agrees_with_finite_differences, of_log_ratios, row, slopes
from torch import Tensor

from nightschool.errors import RefusedError
from nightschool.objectives.dro import DRO, DroRule
from nightschool.training.losses import LOSSES
from nightschool.training.losses.batch import TokenBatch


def dro(batch: TokenBatch) -> Tensor:
    """The page's form, 0.5 (r - V - tau LR)^2: tau times what is trained."""
    tau = batch.annotations["beta"]
    return LOSSES[DRO.loss(DroRule()).name](replace(batch, weights=batch.weights * tau))


def test_golden_g3c() -> None:
    # r = 1, V = 0.6, tau = 0.5, LR = 0.4: residual 1 - 0.6 - 0.2 = 0.2, half its square 0.02
    value = torch.tensor([0.6], requires_grad=True)
    batch = of_log_ratios([0.4], beta=[0.5])
    batch = replace(batch, annotations={**batch.annotations, "advantage": 1 - value})
    loss = dro(batch)
    assert loss.item() == pytest.approx(0.020000, abs=1e-5)
    by_value, by_policy = torch.autograd.grad(loss, [value, batch.logprobs])
    assert by_value.tolist() == pytest.approx([-0.2], abs=1e-5)
    assert by_policy.tolist() == pytest.approx([-0.1], abs=1e-5)


def test_what_is_trained_differs_by_tau_alone() -> None:
    batch = of_log_ratios([0.4, -0.3], beta=[0.5, 0.5], advantage=[0.4, -0.6])
    trained = LOSSES[DRO.loss(DroRule()).name](batch)
    assert slopes(dro(batch), batch) == pytest.approx([0.5 * x for x in slopes(trained, batch)])


def test_at_the_reference_the_gradient_is_a_policy_gradient() -> None:
    batch = of_log_ratios([0.0, 0.0, 0.0], beta=[0.25] * 3, advantage=[0.4, -0.6, 0.0])
    assert slopes(LOSSES["squared_log_ratio"](batch), batch) == pytest.approx([-0.4 / 3, 0.2, 0.0])
    assert agrees_with_finite_differences(dro, batch)


def test_the_value_is_the_joint_optimum() -> None:
    # tau log(1 + p (e^(1/tau) - 1)): p = 0.25, tau = 0.5: 0.5 log(1 + 0.25 * 6.389056) = 0.477385
    rows = [row("a", (1, 2, 3), reward=1.0, p_hat=0.25), row("b", (1, 4, 3), reward=0.0, p_hat=0.25)]
    good, bad = DRO.annotate(rows, DroRule(tau=0.5))
    value = 0.5 * math.log(1 + 0.25 * (math.exp(2) - 1))
    assert good.annotations["value"] == pytest.approx(value)
    assert good.annotations["advantage"] == pytest.approx(1 - value)
    assert bad.annotations["advantage"] == pytest.approx(-value)
    # there, the residuals are zero at LR = A / tau, and the policy of these log-ratios is normalized
    mass = 0.25 * math.exp((1 - value) / 0.5) + 0.75 * math.exp(-value / 0.5)
    assert mass == pytest.approx(1)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_a_sure_request_teaches_nothing(p: float) -> None:
    [sample] = DRO.annotate([row("a", (1, 2, 3), reward=p, p_hat=p)], DroRule(tau=0.01))
    assert sample.annotations["advantage"] == pytest.approx(0)


def test_what_it_needs() -> None:
    with pytest.raises(RefusedError, match="p_hat"):
        DRO.annotate([row("a", (1, 2, 3), reward=1.0)], DroRule())
    with pytest.raises(RefusedError, match="no feedback"):
        DRO.annotate([row("a", (1, 2, 3), p_hat=0.5)], DroRule())
    with pytest.raises(RefusedError, match="above zero"):
        DRO.annotate([row("a", (1, 2, 3), reward=1.0, p_hat=0.5)], DroRule(tau=0.0))
    assert DRO.anchored
    assert DRO.valued
