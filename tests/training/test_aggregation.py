import pytest
import torch

from nightschool.errors import InputError
from nightschool.objectives.loss import Aggregation
from nightschool.training.losses.batch import TokenBatch
from nightschool.training.losses.likelihood import sft


def golden() -> TokenBatch:
    """G1: masked tokens -1, -2 of one sequence and -0.2, -0.3, -0.4 of the other."""
    logprobs = torch.tensor([-1.0, -2.0, -0.2, -0.3, -0.4])
    return TokenBatch(logprobs, torch.tensor([0, 0, 1, 1, 1]), torch.ones(2), 5, 2)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (Aggregation.TOKEN_MEAN, 0.78),  # 3.9 / 5
        (Aggregation.SEQUENCE_MEAN, 0.9),  # (1.5 + 0.3) / 2
        (Aggregation.SEQUENCE_SUM, 1.95),  # 3.9 / 2
    ],
)
def test_the_modes_of_golden_g1(mode: Aggregation, expected: float) -> None:
    assert sft(golden(), mode).item() == pytest.approx(expected, abs=1e-6)


def test_a_constant_length_of_golden_g1() -> None:
    # 3.9 / (2 * 4)
    batch = golden()
    assert batch.reduced(-batch.logprobs, Aggregation.CONSTANT, 4).item() == pytest.approx(0.975 / 2)
    with pytest.raises(InputError, match="length"):
        batch.reduced(-batch.logprobs, Aggregation.CONSTANT)
