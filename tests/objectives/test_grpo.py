"""GRPO's family: golden G5 of advantages and shaping, who is compared with whom, and what is refused."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

import pytest
from ratios import POLICY, batch_of, golden_rows, row

from nightschool.errors import RefusedError, TooLittleDataError
from nightschool.objectives.advantages import Baseline, Scale, compared
from nightschool.objectives.catalog import find_objective
from nightschool.objectives.clipping import BEHAVIOR
from nightschool.objectives.family import VARIANTS
from nightschool.objectives.grpo import GrpoRule, annotate, loss
from nightschool.objectives.off_policy import ORIGIN
from nightschool.objectives.rollouts import FAILED, TRUNCATED, Overlong, shaped
from nightschool.training.losses import LOSSES
from nightschool.types import Sample


def group(rewards: list[float | None], name: str = "g", **more: Any) -> list[Sample]:
    return [row(f"{name}{place}", 2, reward=reward, group_id=name, **more) for place, reward in enumerate(rewards)]


def given(rows: list[Sample], rule: GrpoRule = GrpoRule()) -> list[float]:  # noqa: B008
    return [one.annotations["advantage"] for one in annotate(rows, rule)]


def advantages(rewards: list[float], rule: GrpoRule) -> list[float]:
    """Of one group."""
    return compared([rewards], rule.baseline, rule.scale, rule.ddof, rule.epsilon)[0]


@pytest.mark.parametrize(
    ("rule", "half", "one"),
    [  # rewards [1, 1, 0, 0] and [1, 0, 0, 0]
        (GrpoRule(ddof=0), [0.999998, 0.999998, -0.999998, -0.999998], [1.732047, -0.577349]),
        (GrpoRule(ddof=1), [0.866024, 0.866024, -0.866024, -0.866024], [1.499997, -0.499999]),
        (GrpoRule(ddof=1, epsilon=1e-4), [0.865875, 0.865875, -0.865875, -0.865875], [1.499700, -0.499900]),
        (VARIANTS["dr_grpo"], [0.5, 0.5, -0.5, -0.5], [0.75, -0.25]),
        (VARIANTS["rloo"], [0.666667, 0.666667, -0.666667, -0.666667], [1.0, -0.333333]),
    ],
)
def test_golden_g5_of_advantages(rule: GrpoRule, half: list[float], one: list[float]) -> None:
    assert given(group([1, 1, 0, 0]), rule) == pytest.approx(half, abs=1e-6)
    assert given(group([1, 0, 0, 0]), rule) == pytest.approx([one[0], *[one[1]] * 3], abs=1e-6)
    assert given(group([1, 1, 1, 1]), rule) == pytest.approx([0.0] * 4, abs=1e-12)


def test_advantages_are_those_of_the_definitions() -> None:
    rewards = [0.3, -1.2, 0.8, 0.1, 2.0]
    mean = statistics.fmean(rewards)
    assert advantages(rewards, GrpoRule(ddof=1, epsilon=0.0)) == pytest.approx(
        [(r - mean) / statistics.stdev(rewards) for r in rewards]
    )
    assert advantages(rewards, GrpoRule(ddof=0, epsilon=0.0)) == pytest.approx(
        [(r - mean) / statistics.pstdev(rewards) for r in rewards]
    )
    others = [r - statistics.fmean([x for y, x in enumerate(rewards) if y != place]) for place, r in enumerate(rewards)]
    assert advantages(rewards, VARIANTS["rloo"]) == pytest.approx(others)


def test_what_a_map_of_rewards_changes() -> None:
    """A deviation divides a unit away; a baseline alone only a shift."""
    rewards = [0.2, 0.9, 0.4]
    mapped = [3 * r + 7 for r in rewards]
    scaled = GrpoRule(epsilon=0.0)
    assert advantages(mapped, scaled) == pytest.approx(advantages(rewards, scaled))
    for plain in (VARIANTS["dr_grpo"], VARIANTS["rloo"]):
        assert advantages(mapped, plain) == pytest.approx([3 * a for a in advantages(rewards, plain)])


def test_a_deviation_blows_up_what_a_noisy_judge_says() -> None:
    """One of sixteen votes flipped: 3.75 deviations; without scaling it stays 15/16."""
    votes = [1.0] + [0.0] * 15
    assert advantages(votes, GrpoRule())[0] == pytest.approx(3.75, abs=1e-4)
    assert advantages(votes, VARIANTS["dr_grpo"])[0] == pytest.approx(0.9375)


def test_the_batch_scale_is_that_of_all_rewards() -> None:
    rows = [*group([1, 0], "a"), *group([1, 1], "b"), *group([0, 0.5], "c")]
    spread = statistics.stdev([1, 0, 1, 1, 0, 0.5])
    expected = [0.5, -0.5, 0, 0, -0.25, 0.25]
    assert given(rows, VARIANTS["lite_ppo"]) == pytest.approx([x / spread for x in expected], abs=1e-5)


def test_a_group_of_one_is_refused() -> None:
    """One library takes its reward for the advantage, and every praised reply is imitated."""
    for rule in VARIANTS.values():
        with pytest.raises(RefusedError, match="group of one"):
            annotate([*group([1, 0]), *group([1], "alone")], rule)
    with pytest.raises(RefusedError, match="in no group"):
        annotate([replace(one, group_id=None) for one in group([1, 0])], GrpoRule())


def test_what_failed_for_no_fault_of_the_policy_is_in_neither_mean_nor_deviation() -> None:
    empty = (False,) * 4
    lost = Sample("lost", (5, 6, 7, 8), empty, empty, group_id="g", annotations={FAILED: 1.0})
    assert given([*group([1, 0, 0]), lost]) == given(group([1, 0, 0]))
    # it leaves a group with one rollout: there is nobody left to compare it with
    left = annotate([*group([1, 0]), *group([1], "h"), replace(lost, group_id="h")], GrpoRule())
    assert {one.group_id for one in left} == {"g"}


def test_a_missing_reward_is_no_number() -> None:
    for broken in (None, float("nan"), float("inf")):
        with pytest.raises(RefusedError, match="missing reward"):
            annotate(group([1.0, broken]), GrpoRule())


def test_equal_groups_are_left_out_where_the_rule_says_so() -> None:
    rows = [*group([1, 0], "a"), *group([1, 1], "b")]
    assert [one.group_id for one in annotate(rows, VARIANTS["dapo"])] == ["a", "a"]
    assert given(rows, VARIANTS["grpo"])[2:] == [0.0, 0.0]
    with pytest.raises(TooLittleDataError, match="nothing to study"):
        annotate(group([1, 1]), VARIANTS["dapo"])


def test_golden_g5_of_soft_overlong() -> None:
    rule = GrpoRule(scale=Scale.NONE, overlong=Overlong(max_length=20, cache=4))
    lengths = (16, 17, 18, 20, 21)
    costs = [shaped(row("y", length, reward=0.0), rule.overlong, 0.0) for length in lengths]
    assert costs == pytest.approx([0.0, -0.25, -0.5, -1.0, -1.0])
    assert shaped(row("y", 18, reward=1.0), rule.overlong, 0.0) == pytest.approx(0.5)
    short, long = replace(group([1])[0], id="s"), row("l", 20, reward=1.0, group_id="g")
    assert given([short, long], rule) == pytest.approx([0.5, -0.5])


def test_distance_from_a_fixed_reference_costs_reward_before_rewards_are_compared() -> None:
    """k1 sums to .3 in one reply and to 0 in the other: 1 - .5 * .3 against 0, each less the other."""
    far = {BEHAVIOR: [-1.0, -1.0], ORIGIN: [-1.1, -1.2]}
    near = {BEHAVIOR: [-1.0, -1.0], ORIGIN: [-1.1, -0.9]}
    rows = [*group([1.0], token_annotations=far), replace(group([0.0], token_annotations=near)[0], id="n")]
    rule = replace(VARIANTS["rloo"], kl_weight=0.5)
    assert given(rows, rule) == pytest.approx([0.85, -0.85])
    with pytest.raises(RefusedError, match="fixed reference"):
        annotate(group([1, 0], token_annotations={BEHAVIOR: [-1.0, -1.0]}), rule)


def test_truncated_rows_may_train_nothing_while_their_reward_counts() -> None:
    rows = [replace(one, annotations={TRUNCATED: float(place == 2)}) for place, one in enumerate(group([1, 0, 0]))]
    left = annotate(rows, GrpoRule(scale=Scale.NONE, overlong=Overlong(leave_out=True)))
    assert [one.id for one in left] == ["g0", "g1"]
    assert [one.annotations["advantage"] for one in left] == pytest.approx([2 / 3, -1 / 3])
    assert len(annotate(rows, GrpoRule())) == 3


def test_an_objective_of_each_name_takes_the_settings_of_its_variant() -> None:
    for name, rule in VARIANTS.items():
        objective = find_objective(name)
        assert objective.rule() == rule
        assert objective.rule(ddof=0) == replace(rule, ddof=0)
        named = objective.loss(rule)
        rows = golden_rows()
        if rule.correction.weighing != "none":
            assert objective.after_anchor is not None
            rows = objective.after_anchor(rows, rule).samples
        assert LOSSES[named.name](batch_of(rows, POLICY), **named.settings).isfinite()


@pytest.mark.parametrize(
    ("name", "expected"),
    [  # G5 at each variant's own settings; dr_grpo: 2.449052 / (2 * 3000)
        ("dapo", 0.394842),
        ("dr_grpo", 0.000408),
        ("gspo", 0.038742),
        ("cispo", -0.395018),
        ("lite_ppo", 0.408176),
    ],
)
def test_golden_g5_of_the_variants(name: str, expected: float) -> None:
    named = loss(VARIANTS[name])
    assert LOSSES[named.name](batch_of(golden_rows(), POLICY), **named.settings).item() == pytest.approx(
        expected, abs=1e-5
    )


def test_what_the_family_needs_of_its_rows() -> None:
    with pytest.raises(RefusedError, match="engine's own"):
        annotate(group([1, 0]), VARIANTS["vespo"])
    with pytest.raises(RefusedError, match="one anchor per buffer"):
        annotate([replace(one, policy_version=v) for one, v in zip(group([1, 0]), "ab", strict=True)], VARIANTS["grpo"])
    known = {BEHAVIOR: [-1.0, -1.0]}
    mixed = [
        replace(one, policy_version=v) for one, v in zip(group([1, 0], token_annotations=known), "ab", strict=True)
    ]
    assert len(annotate(mixed, VARIANTS["rloo_tis"])) == 2
    with pytest.raises(RefusedError, match="anchor of its own"):
        annotate(golden_rows(), VARIANTS["grpo"])


def test_members_of_a_group_are_told_apart_by_their_reward_alone() -> None:
    good, bad = annotate(group([1, 0]), GrpoRule(Baseline.OTHERS, Scale.NONE))
    assert (good.annotations["advantage"], bad.annotations["advantage"]) == (1.0, -1.0)
