from __future__ import annotations

import math

import pytest
import torch

from nightschool.errors import InputError
from nightschool.training.losses.batch import TokenBatch
from nightschool.training.losses.log_ratio import squared_log_ratio
from nightschool.training.losses.mixing import Totals, count
from nightschool.types import Sample


def token_batch(
    rows: list[list[float]], reference: list[list[float]] | None = None, **annotations: list[float]
) -> TokenBatch:
    flat = torch.tensor([x for row in rows for x in row], dtype=torch.float64, requires_grad=True)
    owner = torch.tensor([index for index, row in enumerate(rows) for _ in row])
    anchor = None if reference is None else torch.tensor([x for row in reference for x in row], dtype=torch.float64)
    weights = torch.tensor(annotations.pop("weights", [1.0] * len(rows)), dtype=torch.float64)
    values = {name: torch.tensor(value, dtype=torch.float64) for name, value in annotations.items()}
    given = {} if anchor is None else {"reference_logprobs": anchor}
    return TokenBatch(flat, owner, weights, len(flat), len(rows), given, values)


def of_log_ratios(log_ratios: list[float], advantages: list[float], beta: float, **more: list[float]) -> TokenBatch:
    count = len(log_ratios)
    return token_batch([[x] for x in log_ratios], [[0.0]] * count, advantage=advantages, beta=[beta] * count, **more)


@pytest.mark.parametrize(
    ("beta", "advantages", "mean_squared", "slopes"),
    [  # golden G6a: rewards [1, 0, 0, 0], LR [2, -1, 0.5, 0]; slopes are 2 * beta2 * residual
        (1e-3, [0.642626, -0.357374], 0.198299, [-0.001281, 0.000713, 0.000716, 0.000715]),
        (0.1, [0.642626, -0.357374], 0.138957, [-0.088525, 0.051475, 0.081475, 0.071475]),
        (0.1, [0.138616, -0.861384], 0.539019, [0.012277, 0.152277, 0.182277, 0.172277]),
    ],
)
def test_squared_log_ratio_of_golden_g6a(
    beta: float, advantages: list[float], mean_squared: float, slopes: list[float]
) -> None:
    batch = of_log_ratios([2.0, -1.0, 0.5, 0.0], [advantages[0], *[advantages[1]] * 3], beta)
    loss = squared_log_ratio(batch)
    assert loss.item() * 2 * beta == pytest.approx(mean_squared, abs=1e-5)
    loss.backward()
    assert batch.logprobs.grad is not None
    assert (batch.logprobs.grad * 4 * 2 * beta).tolist() == pytest.approx(slopes, abs=1e-5)


def test_the_gradient_is_that_of_a_policy_gradient_at_the_anchor() -> None:
    batch = of_log_ratios([0.0, 0.0], [0.5, -0.25], 0.125)
    squared_log_ratio(batch).backward()
    assert batch.logprobs.grad is not None
    assert batch.logprobs.grad.tolist() == [-0.25, 0.125]  # -A / 2 sequences: up for good, down for bad


def test_gradient_agrees_with_finite_differences() -> None:
    def value(x: torch.Tensor) -> torch.Tensor:
        owner = torch.tensor([0, 0, 1])
        anchor = torch.tensor([-0.3, -0.8, -0.1], dtype=torch.float64)
        notes = {"advantage": torch.tensor([0.4, -0.7]).double(), "beta": torch.tensor([0.25, 0.25]).double()}
        weights = torch.tensor([1.0, 0.3]).double()
        return squared_log_ratio(TokenBatch(x, owner, weights, 3, 2, {"reference_logprobs": anchor}, notes))

    assert torch.autograd.gradcheck(value, torch.tensor([-0.5, -0.6, -0.9], dtype=torch.float64, requires_grad=True))


def test_a_failure_below_the_floor_is_pushed_no_further_but_may_return() -> None:
    # beta 0.25: target LR of A = -1 is -4; row 0 at -3.5 still wants down (stopped), row 1 at -5 wants up
    batch = of_log_ratios([-3.5, -5.0, -2.0], [-1.0, -1.0, -1.0], 0.25, floor=[-3.0] * 3)
    squared_log_ratio(batch).backward()
    assert batch.logprobs.grad is not None
    stopped, back, down = batch.logprobs.grad.tolist()
    assert stopped == 0
    assert back < 0 < down


def test_an_exact_fit_multiplies_the_odds_by_exp_one_over_beta() -> None:
    # two outcomes, success probability 1/4, V the closed form: odds 1/3 -> e / 3, probability e / (e + 3)
    anchor = torch.tensor([0.25, 0.75], dtype=torch.float64).log()
    value = math.log(1 + 0.25 * (math.e - 1))
    logits = anchor.clone().requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=0.05)
    for _ in range(2000):
        batch = TokenBatch(
            logits.log_softmax(0),
            torch.tensor([0, 1]),
            torch.tensor([0.25, 0.75], dtype=torch.float64),
            2,
            2,
            {"reference_logprobs": anchor},
            {"advantage": torch.tensor([1 - value, -value]).double(), "beta": torch.ones(2).double()},
        )
        optimizer.zero_grad()
        squared_log_ratio(batch).backward()
        optimizer.step()
    success = logits.softmax(0)[0].item()
    assert success == pytest.approx(0.475367, abs=1e-6)
    assert success / (1 - success) == pytest.approx(math.e / 3, abs=1e-5)  # 0.9061


def test_squared_log_ratio_needs_an_anchor() -> None:
    with pytest.raises(InputError, match="reference"):
        squared_log_ratio(token_batch([[-1.0]], advantage=[1.0], beta=[1.0]))


def test_totals_leave_fully_masked_sequences_out() -> None:
    def sample(mask: tuple[bool, ...]) -> Sample:
        return Sample("s", (1, 2, 3), mask, mask)

    assert count([sample((False, True, True)), sample((False, False, False))]) == {"": Totals(2, 1)}
    with pytest.raises(InputError, match="No token"):
        count([sample((False, False, False))])
