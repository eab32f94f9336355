from __future__ import annotations

import math
from dataclasses import replace

import pytest
from loss_batches import of_log_ratios, row
from torch import Tensor

from nightschool.errors import RefusedError
from nightschool.objectives.qrpo import QRPO, QrpoRule, log_partition, quantile
from nightschool.training.losses import LOSSES
from nightschool.training.losses.batch import TokenBatch
from nightschool.types import Sample


def qrpo(batch: TokenBatch, beta: float) -> Tensor:
    """The page's form, (R - beta log Z - beta LR)^2: 2 beta times what is trained."""
    return 2 * beta * LOSSES[QRPO.loss(QrpoRule()).name](batch)


@pytest.mark.parametrize(
    ("beta", "residual", "loss"),
    [(0.1, -0.069737, 0.004863), (1.0, -0.291325, 0.084870)],
)
def test_golden_g3d(beta: float, residual: float, loss: float) -> None:
    worth = beta * log_partition(beta)
    batch = of_log_ratios([0.5], beta=[beta], advantage=[0.75 - worth])
    assert 0.75 - worth - beta * 0.5 == pytest.approx(residual, abs=1e-6)
    assert qrpo(batch, beta).item() == pytest.approx(loss, abs=1e-5)


def test_the_partition_function_is_known() -> None:
    assert math.exp(log_partition(0.1)) == pytest.approx(2202.5466, abs=1e-4)
    assert 0.1 * log_partition(0.1) == pytest.approx(0.769737, abs=1e-6)
    assert log_partition(1.0) == pytest.approx(0.541325, abs=1e-6)
    # the mean of e^(R / beta) over a fine uniform grid
    steps = 100_000
    mean = sum(math.exp((i + 0.5) / steps / 0.25) for i in range(steps)) / steps
    assert math.exp(log_partition(0.25)) == pytest.approx(mean, rel=1e-6)
    assert 1e-3 * log_partition(1e-3) == pytest.approx(1 - 1e-3 * math.log(1e3))  # no overflow: beta log beta + 1


def test_a_quantile_counts_what_does_not_exceed() -> None:
    assert quantile(2.0, [1.0, 2.0, 3.0, 4.0]) == 0.5
    assert quantile(0.0, [1.0, 2.0]) == 0.0
    assert quantile(9.0, [1.0, 2.0]) == 1.0


def group(name: str, *rewards: float, version: str = "v1") -> list[Sample]:
    made = [row(f"{name}{i}", (1, 2, 10 + i), reward=reward) for i, reward in enumerate(rewards)]
    return [replace(sample, group_id=name, policy_version=version) for sample in made]


def test_a_reward_is_ranked_among_the_others_of_its_request() -> None:
    rows = group("p", 0.3, -1.2, 5.0, 2.5, 0.31)
    made = QRPO.annotate(rows, QrpoRule(beta=0.1))
    assert [sample.annotations["quantile"] for sample in made] == [0.25, 0.0, 1.0, 0.75, 0.5]
    assert made[2].annotations["advantage"] == pytest.approx(1 - 0.769737, abs=1e-6)
    assert made[2].annotations["beta"] == 0.1


def test_a_production_row_is_ranked_among_the_references() -> None:
    rows = [*group("p", 1.0, 2.0, 3.0, 4.0, 5.0, version="v0"), *group("p", 3.5, version="v1")]
    made = QRPO.annotate(rows, QrpoRule(reference="v0"))
    assert made[-1].annotations["quantile"] == pytest.approx(3 / 5)
    assert made[0].annotations["quantile"] == 0.0  # four others, none as low
    with pytest.raises(RefusedError, match="one anchor per buffer"):
        QRPO.annotate(rows, QrpoRule())


def test_binary_rewards_are_refused() -> None:
    with pytest.raises(RefusedError, match="rewards are continuous"):
        QRPO.annotate(group("p", 0.0, 1.0, 1.0, 0.0, 1.0), QrpoRule())
    with pytest.raises(RefusedError, match="rewards are continuous"):  # a scale of two steps, whatever they are called
        QRPO.annotate(group("p", 0.2, 0.9, 0.9, 0.2, 0.2), QrpoRule())


def test_what_it_needs() -> None:
    with pytest.raises(RefusedError, match="ranked among 4"):
        QRPO.annotate(group("p", 0.1, 0.2, 0.3, 0.4), QrpoRule())
    with pytest.raises(RefusedError, match="no feedback"):
        QRPO.annotate([replace(group("p", 0.1)[0], reward=None)], QrpoRule())
    with pytest.raises(RefusedError, match="no feedback"):
        QRPO.annotate(group("p", math.nan), QrpoRule())
    with pytest.raises(RefusedError, match="above zero"):
        QRPO.annotate(group("p", 0.1, 0.2), QrpoRule(beta=0.0))
    assert QRPO.anchored
