from __future__ import annotations

import math
from dataclasses import replace

import pytest
from rollouts import priced, slopes

from nightschool.errors import RefusedError, TooLittleDataError
from nightschool.objectives import sft
from nightschool.objectives.oapl import OAPL, OaplRule, value
from nightschool.objectives.oapl_group import OAPL_GROUP, OaplGroupRule
from nightschool.types import Sample
from nightschool.valuation.soft_value import closed_form, log_mean_exp

MASK = (False, True, True)


def sample(reward: float | None = 1.0, group: str | None = "g", version: str = "v1", name: str = "s") -> Sample:
    return Sample(name, (5, 6, 7), MASK, MASK, reward=reward, policy_version=version, group_id=group)


def single(sample: Sample, p_hat: float = 0.5, p_lo: float = 0.4, **notes: float) -> Sample:
    return replace(sample, annotations={**sample.annotations, "p_hat": p_hat, "p_lo": p_lo, **notes})


def test_group_values_of_golden_g6a() -> None:
    assert log_mean_exp([1, 0, 0, 0], 1.0) == pytest.approx(0.357374, abs=1e-6)
    assert log_mean_exp([1, 0, 0, 0], 0.1) == pytest.approx(0.861384, abs=1e-6)


@pytest.mark.parametrize(
    ("rewards", "advantages"),
    [  # golden G5, column OAPL beta1 = 1
        ([1, 1, 0, 0], [0.379885, 0.379885, -0.620115, -0.620115]),
        ([1, 0, 0, 0], [0.642626, -0.357374, -0.357374, -0.357374]),
        ([1, 1, 1, 1], [0, 0, 0, 0]),
    ],
)
def test_group_advantages(rewards: list[float], advantages: list[float]) -> None:
    found = OAPL_GROUP.annotate([sample(r) for r in rewards], OaplGroupRule(beta1=1.0, beta2=0.1, anchor="v1"))
    assert [s.annotations["advantage"] for s in found] == pytest.approx(advantages, abs=1e-6)
    assert {s.annotations["beta"] for s in found} == {0.1}


@pytest.mark.parametrize(
    ("beta1", "beta2", "value", "residuals", "mean_squared", "gradients"),
    [
        (
            1.0,
            1e-3,
            0.357374,
            [-0.640626, 0.356374, 0.357874, 0.357374],
            0.198299,
            [-0.001281, 0.000713, 0.000716, 0.000715],
        ),
        (
            1.0,
            0.1,
            0.357374,
            [-0.442626, 0.257374, 0.407374, 0.357374],
            0.138957,
            [-0.088525, 0.051475, 0.081475, 0.071475],
        ),
        (
            0.1,
            0.1,
            0.861384,
            [0.061384, 0.761384, 0.911384, 0.861384],
            0.539019,
            [0.012277, 0.152277, 0.182277, 0.172277],
        ),
    ],
)
def test_golden_g6a_from_rewards_to_gradients_in_single_precision(
    beta1: float, beta2: float, value: float, residuals: list[float], mean_squared: float, gradients: list[float]
) -> None:
    rewards, ratios = [1.0, 0.0, 0.0, 0.0], [2.0, -1.0, 0.5, 0.0]
    expected = beta1 * math.log(sum(math.exp(r / beta1) for r in rewards) / 4)
    assert expected == pytest.approx(value, abs=1e-6)
    found = [beta2 * ratio - (r - expected) for ratio, r in zip(ratios, rewards, strict=True)]
    assert found == pytest.approx(residuals, abs=1e-6)
    rows = [sample(reward, name=str(place)) for place, reward in enumerate(rewards)]
    # two tokens a row: what they gained adds up to LR
    policy, anchor = [[ratio - 3.5, -0.5] for ratio in ratios], [[-3.75, -0.25]] * 4
    loss, logprobs = priced(OAPL_GROUP, OaplGroupRule(beta1, beta2), [longer(row) for row in rows], policy, anchor)
    assert loss.item() * 2 * beta2 == pytest.approx(mean_squared, abs=1e-5)
    assert [8 * beta2 * x for x in slopes(logprobs)[::2]] == pytest.approx(gradients, abs=1e-5)
    assert slopes(logprobs)[::2] == slopes(logprobs)[1::2]


def longer(row: Sample) -> Sample:
    mask = (False, False, True, True)
    return replace(row, token_ids=(5, 6, 7, 8), completion_mask=mask, loss_mask=mask)


def test_groups_do_not_mix() -> None:
    found = OAPL_GROUP.annotate([sample(1, "a"), sample(0, "b"), sample(1, "a"), sample(0, "b")], OaplGroupRule())
    assert [s.annotations["advantage"] for s in found] == pytest.approx([0, 0, 0, 0])


def test_a_session_in_two_rows_bounds_the_loss_of_the_whole_and_shares_its_gradient() -> None:
    row = replace(sample(1.0), annotations={"num_rows": 2.0})
    first, _ = OAPL.annotate([single(row), single(row)], OaplRule(beta=0.5, margin=0.0))
    notes = first.annotations
    # value min(0.4, 0.5) = 0.4, advantage 0.6, and twice the temperature in each row
    assert (notes["advantage"], notes["beta"], notes["floor"]) == (pytest.approx(0.6), 1.0, -1.5)
    assert "num_rows" not in notes

    def loss(beta: float, advantage: float, log_ratio: float) -> float:
        return (beta * log_ratio - advantage) ** 2 / (2 * beta)

    for left, right in ((0.0, 0.0), (0.3, 0.3), (1.0, -0.4), (-2.0, 0.1)):
        rows = loss(1.0, 0.6, left) + loss(1.0, 0.6, right)
        whole = loss(0.5, 0.6, left + right)
        assert rows >= whole - 1e-12
        assert (rows == pytest.approx(whole)) == (left == right)
    # gradient by one row at the anchor: (beta * 0 - A) in both forms, -0.6
    step = 1e-6
    assert (loss(1.0, 0.6, step) - loss(1.0, 0.6, 0.0)) / step == pytest.approx(-0.6, abs=1e-4)
    assert (loss(0.5, 0.6, step) - loss(0.5, 0.6, 0.0)) / step == pytest.approx(-0.6, abs=1e-4)


def test_a_group_of_one_is_refused() -> None:
    with pytest.raises(RefusedError, match="group of one"):
        OAPL_GROUP.annotate([sample(1, "a"), sample(0, "a"), sample(1, "b")], OaplGroupRule())


def test_a_buffer_of_two_versions_is_refused() -> None:
    with pytest.raises(RefusedError, match="one anchor per buffer"):
        OAPL_GROUP.annotate([sample(1), sample(0, version="v2")], OaplGroupRule())
    with pytest.raises(RefusedError, match="one anchor per buffer"):
        OAPL_GROUP.annotate([sample(1), sample(0)], OaplGroupRule(anchor="v2"))
    anchored = replace(sample(), reference_logprobs=(None, -1.0, -1.0))
    with pytest.raises(RefusedError, match="one anchor per buffer"):
        OAPL.annotate([single(anchored)], OaplRule())


def test_the_value_is_the_more_pessimistic_of_two_margins_and_never_negative() -> None:
    assert value(0.6, 0.5, beta=0.25, margin=1.0) == pytest.approx(0.35)  # 0.6 - 0.25 is below p_lo
    assert value(0.6, 0.2, beta=0.25, margin=1.0) == 0.2  # p_lo is below
    assert value(0.6, 0.5, beta=0.25, margin=0.0) == 0.5  # never above p_lo
    assert value(0.1, 0.05, beta=0.25, margin=1.0) == 0.0


def test_single_advantages() -> None:
    rule = OaplRule(beta=0.25, margin=1.0, floor=-3.0)
    up, down = OAPL.annotate([single(sample(1.0), 0.6, 0.5), single(sample(0.0), 0.6, 0.2)], rule)
    added = {"value": 0.35, "advantage": 0.65, "beta": 0.25, "floor": -3.0}
    assert up.annotations == pytest.approx({"p_hat": 0.6, "p_lo": 0.5} | added)
    assert down.annotations["advantage"] == pytest.approx(-0.2)


def test_a_margin_that_was_earned_is_taken_off_and_never_put_on() -> None:
    earned, other = OAPL.annotate([single(sample(), 0.6, 0.5, margin=0.0), single(sample(), 0.6, 0.5)], OaplRule())
    assert earned.annotations["value"] == 0.5  # p_lo; p_hat - 0 * beta lies above it
    assert other.annotations["value"] == pytest.approx(0.35)
    (kept,) = OAPL.annotate([single(sample(), 0.6, 0.5, margin=1.0)], OaplRule(margin=0.0))
    assert kept.annotations["value"] == 0.5


@pytest.mark.parametrize("missing", ["p_hat", "p_lo"])
def test_a_missing_estimate_is_refused_and_never_a_number(missing: str) -> None:
    row = single(sample())
    del row.annotations[missing]
    with pytest.raises(RefusedError, match=f"no {missing}"):
        OAPL.annotate([row], OaplRule())


def test_temperatures_are_above_zero() -> None:
    with pytest.raises(RefusedError, match="above zero"):
        OAPL.annotate([single(sample())], OaplRule(beta=0.0))
    with pytest.raises(RefusedError, match="above zero"):
        OAPL_GROUP.annotate([sample(1), sample(0)], OaplGroupRule(beta1=-1.0))


def test_soft_rewards_need_calibration() -> None:
    with pytest.raises(RefusedError, match="calibrated probability"):
        OAPL.annotate([single(sample(0.7))], OaplRule())
    (soft,) = OAPL.annotate([single(sample(0.7))], OaplRule(calibrated=True))
    assert soft.annotations["advantage"] == pytest.approx(0.7 - 0.25)


@pytest.mark.parametrize("reward", [None, float("nan"), 1.5, -0.1])
def test_a_reward_that_is_none_is_refused(reward: float | None) -> None:
    with pytest.raises(RefusedError):
        OAPL.annotate([single(sample(reward))], OaplRule(calibrated=True))


def test_a_trajectory_with_a_part_left_out_is_refused() -> None:
    partial = replace(sample(), loss_mask=(False, True, False))
    with pytest.raises(RefusedError, match="whole trajectory"):
        OAPL.annotate([single(partial)], OaplRule())
    assert sft.annotate([partial], sft.SftRule()) == [partial]  # imitation may leave a part out


def test_tokens_of_somebody_else_are_never_trained() -> None:
    with pytest.raises(RefusedError, match="only sampled tokens"):
        sft.annotate([replace(sample(), completion_mask=(False, False, True))], sft.SftRule())
    with pytest.raises(RefusedError, match="first token"):
        sft.annotate(
            [replace(sample(), loss_mask=(True, True, True), completion_mask=(True, True, True))], sft.SftRule()
        )
    with pytest.raises(RefusedError, match="has none"):
        sft.annotate([replace(sample(), loss_mask=(False, False, False))], sft.SftRule())
    with pytest.raises(TooLittleDataError, match="nothing to study"):
        sft.annotate([], sft.SftRule())


@pytest.mark.parametrize(("p", "expected"), [(0.25, 0.357374), (0.5, 0.620115), (0.0, 0.0), (1.0, 1.0)])
def test_the_closed_form_value_is_the_group_value_of_an_infinite_group(p: float, expected: float) -> None:
    # beta log(1 + p (e^(1/beta) - 1)) at beta = 1, against a group of 4000 of which a share p succeeds
    assert closed_form(p, 1.0) == pytest.approx(expected, abs=1e-6)
    good = int(4000 * p)
    assert log_mean_exp([1.0] * good + [0.0] * (4000 - good), 1.0) == pytest.approx(closed_form(p, 1.0), abs=1e-9)
    assert closed_form(0.25, 1e-3) == pytest.approx(1 + 1e-3 * math.log(0.25))  # e^1000 is no float
