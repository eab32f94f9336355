from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from loss_batches import agrees_with_finite_differences, of_log_ratios, row, slopes

from nightschool.errors import InputError, RefusedError
from nightschool.objectives.judged import balance, judge, weight_range
from nightschool.objectives.kto import KTO, KtoRule
from nightschool.training.losses.batch import TokenBatch
from nightschool.training.losses.preference import apo_zero, kto
from nightschool.types import Sample


def golden(mismatched: list[float], good: float = 2.0, bad: float = 1.0) -> TokenBatch:
    """G3a: a desirable row of log-ratio 2, an undesirable one of 1, and mismatched ones."""
    notes = {"desirable": [1.0, 0.0, 0.0, 1.0], "mismatched": [0.0, 0.0, 1.0, 1.0]}
    return of_log_ratios([good, bad, *mismatched], **notes)


def sigma(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def only(batch: TokenBatch, place: int) -> float:
    """What one judged row of two adds to the mean."""
    weights = torch.zeros(4)
    weights[place] = 2
    return kto(replace(batch, weights=weights)).item()


@pytest.mark.parametrize(
    ("mismatched", "good", "bad", "mean"),
    [
        ([0.6, -0.2], 0.455121, 0.519989, 0.487555),  # z0 = 0.2: 1 - sigma(0.18), 1 - sigma(-0.08)
        ([-0.6, -0.2], 0.450166, 0.524979, 0.4875725),  # z0 = 0, clamped: 1 - sigma(0.2), 1 - sigma(-0.1)
    ],
)
def test_golden_g3a(mismatched: list[float], good: float, bad: float, mean: float) -> None:
    batch = golden(mismatched)
    assert only(batch, 0) == pytest.approx(good, abs=1e-5)
    assert only(batch, 1) == pytest.approx(bad, abs=1e-5)
    assert kto(batch).item() == pytest.approx(mean, abs=1e-5)
    z0 = max(0.0, sum(mismatched) / 2)
    assert mean == pytest.approx((1 - sigma(0.1 * (2 - z0)) + 1 - sigma(0.1 * (z0 - 1))) / 2, abs=1e-6)


def test_the_mean_is_clamped_and_not_its_parts() -> None:
    # parts [0.6, -0.9] have the mean -0.15, so z0 = 0; clamped before averaging they would give 0.3
    assert kto(golden([0.6, -0.9])).item() == pytest.approx(kto(golden([0.0, 0.0])).item(), abs=1e-7)


def test_the_reference_point_takes_no_gradient() -> None:
    batch = golden([0.6, -0.2])
    up, down, *mismatched = slopes(kto(batch), batch)
    # d/dLR of 1 - sigma(b (LR - z0)) is -b s (1 - s); half of it is the row's share of the mean
    s, t = sigma(0.18), sigma(-0.08)
    assert up == pytest.approx(-0.1 * s * (1 - s) / 2, abs=1e-7)
    assert down == pytest.approx(0.1 * t * (1 - t) / 2, abs=1e-7)
    assert mismatched == [0.0, 0.0]


def test_apo_zero_is_kto_with_nothing_measured() -> None:
    batch = of_log_ratios([2.0, 1.0], desirable=[1.0, 0.0])
    assert apo_zero(batch).item() == pytest.approx((0.450166 + 0.524979) / 2, abs=1e-5)
    assert apo_zero(batch).item() == pytest.approx(kto(golden([-1.0, -1.0])).item(), abs=1e-7)
    assert agrees_with_finite_differences(apo_zero, batch)


def test_a_lost_case_is_given_up() -> None:
    """By design the pull vanishes on replies far below, or far above, the reference point."""
    batch = golden([0.0, 0.0], good=-300.0, bad=300.0)
    assert slopes(kto(batch), batch)[:2] == pytest.approx([0.0, 0.0], abs=1e-9)
    batch = golden([0.0, 0.0], good=0.0, bad=0.0)
    assert slopes(kto(batch), batch)[:2] == pytest.approx([-0.0125, 0.0125])  # beta / 4, over 2 rows


def test_gradient_agrees_with_finite_differences() -> None:
    # where z0 is clamped nothing flows through it, so that differences see what the loss says
    assert agrees_with_finite_differences(kto, golden([-0.6, -0.2]))


def test_a_batch_without_mismatched_replies_is_an_error() -> None:
    with pytest.raises(InputError, match="no mismatched"):
        kto(of_log_ratios([1.0, 2.0], desirable=[1.0, 0.0], mismatched=[0.0, 0.0]))
    with pytest.raises(InputError, match="mismatched"):
        kto(of_log_ratios([1.0, 2.0], desirable=[1.0, 0.0]))


def test_the_class_weights_of_the_page() -> None:
    # 30 good, 10 bad: 30 / (w * 10) lies in [1, 4/3] for w in [30 / (10 * 4/3), 30 / 10]
    assert weight_range(30, 10) == pytest.approx((2.25, 3.0))
    assert weight_range(10, 30) == pytest.approx((0.25, 1 / 3))


def judged(num_good: int, num_bad: int) -> list[Sample]:
    rewards = [1.0] * num_good + [0.0] * num_bad
    return judge([row(str(i), (1, 10 + i, 3), reward=r) for i, r in enumerate(rewards)], calibrated=False)


def test_classes_are_balanced_by_the_least_factor() -> None:
    assert {sample.weight for sample in balance(judged(30, 10), None)} == {1.0, 2.25}
    assert {round(sample.weight, 6) for sample in balance(judged(10, 30), None)} == {1.0, 0.333333}
    assert {sample.weight for sample in balance(judged(8, 7), None)} == {1.0}  # 8 / 7 is within [1, 4/3]
    assert {sample.weight for sample in balance(judged(30, 10), 2.5)} == {1.0, 2.5}
    with pytest.raises(RefusedError, match=r"Bad ones count 1 times; between 2.25 and 3 would do"):
        balance(judged(30, 10), 1.0)


def test_the_balance_is_told_for_the_log() -> None:
    for rule in (KtoRule(), KtoRule(measured=False)):
        rows = KTO.annotate(judged(30, 10), rule)
        assert KTO.after_anchor is not None
        told = KTO.after_anchor(rows, rule)
        assert told.samples == rows
        assert told.figures == {"class_balance": pytest.approx(30 / 22.5)}  # 10 bad ones, 2.25 times each


def test_a_judgement_is_a_label_and_a_weight() -> None:
    soft = judge([row("a", (1, 2, 3), reward=0.9), row("b", (1, 2, 4), reward=0.3)], calibrated=True)
    assert [sample.annotations["desirable"] for sample in soft] == [1.0, 0.0]
    assert [sample.weight for sample in soft] == pytest.approx([0.8, 0.4])  # |2 P - 1|
    with pytest.raises(RefusedError, match="calibrated"):
        judge([row("a", (1, 2, 3), reward=0.9)], calibrated=False)
    with pytest.raises(RefusedError, match="no feedback is not a bad reward"):
        judge([row("a", (1, 2, 3)), row("b", (1, 2, 4), reward=0.0)], calibrated=False)
    with pytest.raises(RefusedError, match="some are bad"):
        judge([row("a", (1, 2, 3), reward=1.0), row("b", (1, 2, 4), reward=0.5)], calibrated=True)
    shared = [replace(sample, annotations={"num_rows": 2.0}) for sample in judged(1, 1)]
    assert [sample.weight for sample in judge(shared, calibrated=False)] == [0.5, 0.5]


def rows() -> list[Sample]:
    """Three requests of one, two and three tokens; the second has two replies, with a tool's token in one."""
    tool = replace(
        row("b2", (4, 5, 22, 23, 24), 2, 0.0),
        completion_mask=(False, False, True, False, True),
        loss_mask=(False, False, True, False, True),
    )
    return [row("a", (3, 20), 1, 1.0), row("b", (4, 5, 21), 2, 1.0), tool, row("c", (6, 7, 8, 25), 3, 0.0)]


def test_a_mismatched_row_is_a_request_with_the_next_reply_to_another_one() -> None:
    made = KTO.annotate(rows(), KtoRule())
    real, other = made[::2], made[1::2]
    assert [sample.id for sample in real] == ["a", "b", "b2", "c"]
    assert [sample.token_ids for sample in other] == [(3, 21), (4, 5, 25), (4, 5, 25), (6, 7, 8, 20)]  # b skips b2
    assert [sample.group_id for sample in made] == ["a", "a", "b", "b", "b2", "b2", "c", "c"]
    assert [sample.annotations["mismatched"] for sample in made] == [0.0, 1.0] * 4
    for sample in other:
        assert sample.loss_mask == sample.completion_mask
        assert len(sample.completion_mask) == len(sample.token_ids)
    assert all(sample.reward is None for sample in other)
    # the tool's token moves along, unlearned
    moved = KTO.annotate([rows()[2], rows()[0]], KtoRule())[3]
    assert (moved.token_ids, moved.loss_mask) == ((3, 22, 23, 24), (False, True, False, True))


def test_one_request_alone_has_no_mismatch() -> None:
    same = [row("a", (1, 2, 3), reward=1.0), row("b", (1, 2, 4), reward=0.0)]
    with pytest.raises(RefusedError, match="replies to other requests"):
        KTO.annotate(same, KtoRule())
    unmeasured = KtoRule(measured=False)
    assert [sample.id for sample in KTO.annotate(same, unmeasured)] == ["a", "b"]
    assert (KTO.loss(KtoRule()).name, KTO.loss(unmeasured).name) == ("kto", "apo_zero")
    assert KTO.anchored
