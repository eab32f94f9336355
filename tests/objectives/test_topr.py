from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from rollouts import drawn, priced, rollout, slopes

from nightschool.errors import RefusedError
from nightschool.objectives.loss import Aggregation
from nightschool.objectives.topr import TOPR, ToprRule
from nightschool.training.losses.batch import TokenBatch
from nightschool.training.losses.reinforce import reinforce, topr

SUM = ToprRule(aggregation=Aggregation.SEQUENCE_SUM)


def test_golden_g6b() -> None:
    # r = -1, d = [-1, 0.3], log-probabilities [-1.5, -0.8]: ratio e^-0.7 = 0.496585, loss 0.496585 * -2.3 = -1.142146
    row = drawn(rollout(0.0, 2), [-0.5, -1.1])
    loss, logprobs = priced(TOPR, SUM, [row], [[-1.5, -0.8]])
    assert math.exp(-0.7) == pytest.approx(0.496585, abs=1e-6)
    assert loss.item() == pytest.approx(-1.142146, abs=1e-5)
    assert slopes(logprobs) == pytest.approx(
        [0.496585] * 2, abs=1e-5
    )  # down, by the ratio of the whole, not of a token


def test_ratios_of_tokens_are_another_algorithm() -> None:
    # mean of min(1, e^d) * log-probability: (0.367879 * -1.5 + 1 * -0.8) / 2 = -0.675909, which is not what we compute
    of_tokens = np.minimum(1, np.exp([-1.0, 0.3])) * np.array([-1.5, -0.8])
    assert of_tokens.mean() == pytest.approx(-0.675909, abs=1e-6)
    row = drawn(rollout(0.0, 2), [-0.5, -1.1])
    loss, _ = priced(TOPR, ToprRule(), [row], [[-1.5, -0.8]])
    assert loss.item() == pytest.approx(-1.142146 / 2, abs=1e-5)


def test_successes_weigh_one_and_failures_fade() -> None:
    rows = [drawn(rollout(reward), [-1.0]) for reward in (1.0, 1.0, 0.0, 0.0, 0.0)]
    # policy over behavior: e^-5, e^+0.5 for successes; e^-5, e^0, e^+0.5 for failures, the last truncated at 1
    _, logprobs = priced(TOPR, SUM, rows, [[-6.0], [-0.5], [-6.0], [-1.0], [-0.5]])
    expected = [-1, -1, math.exp(-5), 1, 1]
    assert [5 * x for x in slopes(logprobs)] == pytest.approx(expected, abs=1e-6)


def test_at_the_behavior_policy_it_is_reinforce() -> None:
    """Invariant 4: all ratios are 1, and the gradient is that of a plain policy gradient."""
    policy = torch.tensor([-0.3, -1.2, -0.7], requires_grad=True)
    batch = TokenBatch(
        policy, torch.tensor([0, 0, 1]), torch.ones(2), 3, 2, {"behavior_logprobs": policy.detach()},
        {"advantage": torch.tensor([-1.0, 1.0])},
    )  # fmt: skip
    found = [torch.autograd.grad(loss(batch, Aggregation.TOKEN_MEAN), policy)[0].tolist() for loss in (topr, reinforce)]
    assert found[0] == pytest.approx(found[1], abs=1e-7)
    assert found[0] == pytest.approx([1 / 3, 1 / 3, -1 / 3], abs=1e-6)


def test_a_reward_in_the_middle_teaches_nothing() -> None:
    _, logprobs = priced(TOPR, replace(SUM, calibrated=True), [drawn(rollout(0.5), [-1.0])], [[-2.0]])
    assert slopes(logprobs) == [0.0]  # zero advantage, zero gradient
    with pytest.raises(RefusedError, match="calibrated probability"):
        TOPR.annotate([drawn(rollout(0.5), [-1.0])], SUM)


def test_the_engines_log_probabilities_are_required_on_every_token() -> None:
    for row in (rollout(1.0, 2), drawn(rollout(1.0, 2), [-1.0]), drawn(rollout(1.0, 2), [-1.0, None])):  # type: ignore[list-item]
        with pytest.raises(RefusedError, match="engine's own"):
            TOPR.annotate([row], SUM)


@pytest.mark.parametrize("loss", [topr, reinforce])
def test_gradient_agrees_with_finite_differences_where_the_ratio_is_held(loss) -> None:
    # the ratio is a constant: with behavior far above the policy's reach it stays truncated, and the loss is linear
    def value(x: torch.Tensor) -> torch.Tensor:
        given = {"behavior_logprobs": torch.full((3,), -9.0).double()}
        notes = {"advantage": torch.tensor([-0.7, 0.4]).double()}
        batch = TokenBatch(x, torch.tensor([0, 0, 1]), torch.tensor([1.0, 0.3]).double(), 3, 2, given, notes)
        return loss(batch, Aggregation.CONSTANT, 4.0)

    assert torch.autograd.gradcheck(value, torch.tensor([-0.5, -0.6, -0.9], dtype=torch.float64, requires_grad=True))
