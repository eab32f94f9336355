from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from loss_batches import agrees_with_finite_differences, of_log_ratios, row, slopes
from torch import Tensor

from nightschool.errors import RefusedError
from nightschool.objectives.bco import BCO, BcoRule, density_ratio
from nightschool.training.losses.batch import TokenBatch
from nightschool.training.losses.preference import bco
from nightschool.types import Sample


def golden(**notes: list[float]) -> TokenBatch:
    """G3b: beta * LR of two desirable rows 0.2 and 0.05, of an undesirable one -0.1; their mean is 0.05."""
    return of_log_ratios([2.0, 0.5, -1.0], desirable=[1.0, 1.0, 0.0], **notes)


def minus_log_sigma(x: float) -> float:
    return math.log1p(math.exp(-x))


@pytest.mark.parametrize(
    ("weights", "expected"),
    [  # -log sigma of 0.2 - 0.05, of 0.05 - 0.05, and of -(-0.1 - 0.05)
        ([3.0, 0.0, 0.0], 0.620957),
        ([0.0, 3.0, 0.0], 0.693147),
        ([0.0, 0.0, 3.0], 0.620957),
        ([1.0, 1.0, 1.0], 0.645020),
    ],
)
def test_golden_g3b(weights: list[float], expected: float) -> None:
    assert bco(golden(weights=weights)).item() == pytest.approx(expected, abs=1e-5)
    assert pytest.approx((2 * minus_log_sigma(0.15) + minus_log_sigma(0)) / 3, abs=1e-6) == 0.645020


def test_the_shift_takes_no_gradient() -> None:
    batch = golden()
    # d/dLR of -log sigma(u - delta) is -beta sigma(-(u - delta)), over 3 rows
    away = 1 / (1 + math.exp(0.15))
    expected = [-0.1 * away / 3, -0.1 * 0.5 / 3, 0.1 * away / 3]
    assert slopes(bco(batch), batch) == pytest.approx(expected, abs=1e-7)


def test_only_the_difference_to_the_others_counts() -> None:
    """A policy that gained the same on everything has learned nothing of who is good."""
    shifted = of_log_ratios([12.0, 10.5, 9.0], desirable=[1.0, 1.0, 0.0])
    assert bco(shifted).item() == pytest.approx(0.645020, abs=1e-5)


def test_a_row_that_is_sorted_already_is_left_alone() -> None:
    batch = of_log_ratios([900.0, -900.0], desirable=[1.0, 0.0])
    assert bco(batch).item() == pytest.approx(0, abs=1e-6)
    assert slopes(bco(batch), batch) == pytest.approx([0, 0], abs=1e-9)
    wrong = of_log_ratios([-900.0, 900.0], desirable=[1.0, 0.0])  # 90 nats on the wrong side, each
    assert bco(wrong).item() == pytest.approx(90.0)
    assert slopes(bco(wrong), wrong) == pytest.approx([-0.05, 0.05])


def test_gradient_agrees_with_finite_differences() -> None:
    """The loss does not differentiate its shift: beside each row stands its mirror image, which weighs nothing."""

    def mirrored(batch: TokenBatch) -> Tensor:
        ratios = batch.log_ratios()
        both = torch.cat([ratios, -ratios])  # the mean stays zero, whatever a difference does to a row
        return bco(
            replace(
                batch,
                logprobs=both,
                rows=torch.arange(len(both)),
                weights=torch.cat([batch.weights, torch.zeros_like(batch.weights)]),
                tokens={"reference_logprobs": torch.zeros_like(both)},
                annotations={"desirable": batch.annotations["desirable"].repeat(2)},
            )
        )

    assert agrees_with_finite_differences(mirrored, golden(weights=[1.0, 0.3, 2.0]))


def rows(*judgements: tuple[float, float]) -> list[Sample]:
    """(reward, p_hat) each."""
    return [row(str(i), (1, 9 + i, 3), reward=r, p_hat=p) for i, (r, p) in enumerate(judgements)]


def test_density_ratios() -> None:
    # p / (1 - p): 0.8 -> 4, 0.5 -> 1, 0.1 -> 0.11 and 0.99 -> 99 beyond the bounds
    assert [density_ratio(p, 0.5, 10) for p in (0.8, 0.5, 0.1, 0.99, 0.0, 1.0)] == pytest.approx(
        [4, 1, 0.5, 10, 0.5, 10]
    )


def test_bad_replies_count_as_if_heard_where_good_ones_were() -> None:
    """Thumbs up come from easy requests (p = 0.8), thumbs down from hard ones (p = 0.2)."""
    made = BCO.annotate(rows(*[(1.0, 0.8)] * 4, (0.0, 0.8), *[(0.0, 0.2)] * 4), BcoRule(undesirable_factor=2 / 3))
    # the one bad reply on an easy request weighs 4, each on a hard one 0.5 (0.25 below the bound); all times 2 / 3
    assert [sample.weight for sample in made] == pytest.approx([1.0] * 4 + [8 / 3] + [1 / 3] * 4)
    plain = BCO.annotate(rows(*[(1.0, 0.8)] * 4, (0.0, 0.8), *[(0.0, 0.2)] * 4), BcoRule(matched=False))
    assert [sample.weight for sample in plain] == pytest.approx([1.0] * 4 + [0.8] * 5)  # 4 / (5 w) in [1, 4/3]


def test_matched_rows_need_a_success_model() -> None:
    bare = [row("a", (1, 2, 3), reward=1.0), row("b", (1, 4, 3), reward=0.0)]
    with pytest.raises(RefusedError, match="p_hat"):
        BCO.annotate(bare, BcoRule())
    assert len(BCO.annotate(bare, BcoRule(matched=False))) == 2
    assert BCO.valued
    assert BCO.anchored
    assert BCO.loss(BcoRule(beta=0.3)).settings == {"beta": 0.3}
