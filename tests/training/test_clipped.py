"""The clipped losses: golden G5, its gradients, and what they promise at the behavior policy."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from ratios import ADVANTAGES, DRIFT, POLICY, batch_of, golden_rows, row

from nightschool.errors import InputError
from nightschool.objectives.clipping import BEHAVIOR, Clip, Penalty, Ratio, Surrogate
from nightschool.objectives.loss import Aggregation
from nightschool.training.losses.batch import TokenBatch
from nightschool.training.losses.clipped import clipped, k3
from nightschool.training.losses.reinforce import reinforce

TOKENS, SEQUENCES, CONSTANT = Aggregation.TOKEN_MEAN, Aggregation.SEQUENCE_MEAN, Aggregation.CONSTANT
GSPO = Clip(3e-4, 4e-4, Ratio.SEQUENCE)
SOFT = Clip(surrogate=Surrogate.SOFT)
ALL = (
    Clip(),
    Clip(0.2, 0.28),
    Clip(dual=3.0),
    GSPO,
    Clip(surrogate=Surrogate.CAPPED),
    SOFT,
    Clip(surrogate=Surrogate.GAMMA),
    Clip(divergence=0.5),
)


def golden() -> TokenBatch:
    return batch_of(golden_rows(), POLICY)


def at_anchor(advantages: tuple[float, ...] = ADVANTAGES, dtype: torch.dtype = torch.float64) -> TokenBatch:
    """The policy is the anchor, and the anchor is the behavior policy."""
    rows = [
        replace(one, token_annotations={"behavior_logprobs": one.reference_logprobs or ()})
        for one in golden_rows(advantages)
    ]
    anchor = [[x for x in one.reference_logprobs or () if x is not None] for one in rows]
    return batch_of(rows, anchor, dtype)


def gradient(batch: TokenBatch, loss: torch.Tensor) -> torch.Tensor:
    (found,) = torch.autograd.grad(loss, batch.logprobs)
    return found


@pytest.mark.parametrize(
    ("clip", "aggregation", "expected"),
    [
        # terms: 1.2, exp(-.1); -0.8 (low bound), -exp(.1), -1, -exp(.5)
        (Clip(), SEQUENCES, 0.043027),
        (Clip(), TOKENS, 0.408176),
        (Clip(0.2, 0.28), TOKENS, 0.394842),  # 1.28 instead of 1.2
        (GSPO, SEQUENCES, 0.038742),  # means .1 and .075: s = 1.105171 (clipped to 1.0004) and 1.077884
        (Clip(surrogate=Surrogate.CAPPED, cap=1.28), TOKENS, -0.382403),
        (Clip(surrogate=Surrogate.CAPPED, cap=5.0), TOKENS, -0.395018),
    ],
)
def test_golden_g5(clip: Clip, aggregation: Aggregation, expected: float) -> None:
    assert clipped(golden(), clip, aggregation=aggregation).item() == pytest.approx(expected, abs=1e-5)


def test_golden_g5_of_dr_grpo_and_by_hand() -> None:
    terms = ([1.2, math.exp(-0.1)], [-0.8, -math.exp(0.1), -1.0, -math.exp(0.5)])
    assert [round(x, 6) for row in terms for x in row] == [1.2, 0.904837, -0.8, -1.105171, -1.0, -1.648721]
    total = -sum(sum(row) for row in terms)
    assert total / 16 == pytest.approx(0.153066, abs=1e-5)  # 2 sequences, 8 tokens each
    assert clipped(golden(), aggregation=CONSTANT, max_length=8).item() == pytest.approx(0.153066, abs=1e-5)
    assert -sum(sum(row) / len(row) for row in terms) / 2 == pytest.approx(0.043027, abs=1e-5)
    assert total / 6 == pytest.approx(0.408176, abs=1e-5)
    sequence = [math.exp(sum(d) / len(d)) for d in DRIFT]
    assert sequence == pytest.approx([1.105171, 1.077884], abs=1e-6)


def test_golden_g4_of_the_clip_and_of_the_dual_clip() -> None:
    rows = [
        row(str(place), 1, reference=[-1.0 - d], annotations={"advantage": a})
        for place, (d, a) in enumerate([(0.3, 1.0), (-0.1, 1.0), (0.05, -1.0)])
    ]
    each = [clipped(batch_of([one], [[-1.0]])).item() for one in rows]
    assert each == pytest.approx([-1.2, -0.904837, 1.051271], abs=1e-5)
    assert clipped(batch_of(rows, [[-1.0]] * 3)).item() == pytest.approx(-0.351189, abs=1e-5)
    far = row("far", 1, reference=[-2.5], annotations={"advantage": -1.0})
    assert clipped(batch_of([far], [[-1.0]])).item() == pytest.approx(4.481689, abs=1e-5)  # e^1.5
    assert clipped(batch_of([far], [[-1.0]]), Clip(dual=3.0)).item() == pytest.approx(3.0, abs=1e-6)


@pytest.mark.parametrize(
    ("ratio", "good", "bad"), [(0.5, 1.120422, 0.339785), (1.0, 1.0, 1.0), (2.0, 0.199148, 1.082683)]
)
def test_golden_g5_of_gamma_weights(ratio: float, good: float, bad: float) -> None:
    assert good == pytest.approx(ratio**2 * math.exp(3 * (1 - ratio)), abs=1e-6)
    assert bad == pytest.approx(ratio**3 * math.exp(2 * (1 - ratio)), abs=1e-6)
    drift = math.log(ratio) / 2  # two tokens: W is their product
    for advantage, weight in ((1.0, good), (-1.0, bad)):
        one = row("a", 2, reference=[-1.0 - drift] * 2, annotations={"advantage": advantage})
        batch = batch_of([one], [[-1.0, -1.0]])
        loss = clipped(batch, Clip(surrogate=Surrogate.GAMMA))
        assert loss.item() == pytest.approx(advantage * weight, abs=1e-5)  # -weight * A * (-1)
        assert gradient(batch, loss).tolist() == pytest.approx([-weight * advantage / 2] * 2, abs=1e-5)


def test_golden_k3_and_its_place_in_the_loss() -> None:
    # d = reference - policy; e^.2 - 1.2 and e^-.1 - .9
    found = k3(torch.tensor([-1.0, -1.0]), torch.tensor([-0.8, -1.1]))
    assert found.tolist() == pytest.approx([0.021403, 0.004837], abs=1e-5)
    one = row("a", 2, reference=[-0.8, -1.1], annotations={"advantage": 0.0})
    loss = clipped(batch_of([one], [[-1.0, -1.0]]), penalty=Penalty(0.5))
    assert loss.item() == pytest.approx(0.5 * (0.0214028 + 0.0048374) / 2, abs=1e-6)
    batch = batch_of([one], [[-1.0, -1.0]], torch.float64)
    # corrected by the ratio pi / anchor = e^-d, gradient included: d/dlp (r k3) = -d r, which is that of KL itself
    corrected = gradient(batch, clipped(batch, penalty=Penalty(1.0, corrected=True)))
    expected = [-0.2 * math.exp(-0.2) / 2, 0.1 * math.exp(0.1) / 2]
    assert corrected.tolist() == pytest.approx(expected, abs=1e-9)


def test_a_penalty_names_the_reference_it_is_taken_to() -> None:
    one = row("a", 1, reference=[-1.0], annotations={"advantage": 0.0}, token_annotations={"origin_logprobs": [-0.8]})
    near = clipped(batch_of([one], [[-1.0]]), penalty=Penalty(1.0))
    far = clipped(batch_of([one], [[-1.0]]), penalty=Penalty(1.0, against="origin_logprobs"))
    assert near.item() == 0
    assert far.item() == pytest.approx(0.021403, abs=1e-5)


@pytest.mark.parametrize("clip", [Clip(), Clip(0.2, 0.28), Clip(dual=3.0), SOFT, Clip(divergence=0.5)])
def test_gradients_agree_with_finite_differences(clip: Clip) -> None:
    """CAPPED and GAMMA hold a constant weight, and a sequence's ratio has its tokens' gradient: other tests."""
    rows = golden_rows((0.7, -1.3))

    def value(x: torch.Tensor) -> torch.Tensor:
        batch = replace(batch_of(rows, POLICY, torch.float64), logprobs=x)
        return clipped(batch, clip, Penalty(0.1), aggregation=SEQUENCES)

    start = torch.tensor([x for one in POLICY for x in one], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(value, start)


def test_a_sequence_ratios_gradient_is_that_of_the_sequence() -> None:
    """d s A / d lp_t = s A / T, summed over a reply as its mean is: what the value itself would give."""
    batch = batch_of(golden_rows(), POLICY, torch.float64)
    found = gradient(batch, clipped(batch, Clip(9.0, 9.0, Ratio.SEQUENCE), aggregation=SEQUENCES))
    good, bad = math.exp(0.1), math.exp(0.075)
    assert found.tolist() == pytest.approx([-good / 4] * 2 + [bad / 8] * 4, abs=1e-9)
    held = gradient(batch, clipped(batch, GSPO, aggregation=SEQUENCES))
    assert held.tolist() == pytest.approx([0.0] * 2 + [bad / 8] * 4, abs=1e-9), "a good one beyond its bound stands"


@pytest.mark.parametrize("clip", ALL)
def test_at_the_behavior_policy_all_ratios_are_one_and_gradients_are_those_of_reinforce(clip: Clip) -> None:
    batch = at_anchor()
    plain = at_anchor()
    expected = gradient(plain, reinforce(plain, aggregation=TOKENS))
    found = gradient(batch, clipped(batch, clip, aggregation=TOKENS))
    torch.testing.assert_close(found, expected)
    assert found[0] < 0 < found[-1], "up for the good one, down for the bad one"


def test_the_first_update_is_never_clipped() -> None:
    """Where policy and anchor are one, any bounds give one gradient: a clip is no trust region for that step."""
    batch = at_anchor()
    tight, loose = (gradient(batch, clipped(batch, Clip(low, low))) for low in (1e-4, 0.9))
    assert torch.equal(tight, loose)


@pytest.mark.parametrize("clip", ALL)
def test_no_advantage_no_gradient(clip: Clip) -> None:
    batch = batch_of(golden_rows((0.0, 0.0)), POLICY)
    assert not gradient(batch, clipped(batch, clip)).any()


@pytest.mark.parametrize("clip", ALL)
def test_shares_of_micro_batches_add_up_to_the_loss_of_the_batch(clip: Clip) -> None:
    rows, whole = golden_rows(), golden()
    parts = [
        replace(batch_of([one], [policy]), num_tokens=6, num_sequences=2)
        for one, policy in zip(rows, POLICY, strict=True)
    ]
    for aggregation in Aggregation:
        shares = [clipped(part, clip, aggregation=aggregation, max_length=8) for part in parts]
        assert sum(share.item() for share in shares) == pytest.approx(
            clipped(whole, clip, aggregation=aggregation, max_length=8).item(), abs=1e-6
        )


@pytest.mark.parametrize("clip", ALL)
def test_what_a_tool_wrote_enters_nothing(clip: Clip) -> None:
    plain = golden_rows()
    behavior = {BEHAVIOR: _known(plain[0].token_annotations[BEHAVIOR])}
    anchor = _known(plain[0].reference_logprobs)
    said = row("y1", 3, [1], reference=anchor, annotations={"advantage": 1.0}, token_annotations=behavior, group_id="g")
    poisoned = replace(said, reference_logprobs=tuple(99.0 if x is None else x for x in said.reference_logprobs or ()))
    with_tool = clipped(batch_of([poisoned, plain[1]], POLICY), clip, aggregation=SEQUENCES)
    assert with_tool.item() == clipped(golden(), clip, aggregation=SEQUENCES).item()


def test_a_far_failure_is_pushed_no_further() -> None:
    """Mean log(behavior / policy) of y2 is -.075 - (-.075): with the anchor's staleness taken out, 0. Moved by 0.6
    per token it exceeds a half, and a bad reply has no gradient left; a good one keeps it."""
    policy = (POLICY[0], tuple(x - 0.6 for x in POLICY[1]))
    for advantage, left in ((-1.0, False), (1.0, True)):
        batch = batch_of(golden_rows((1.0, advantage)), policy)
        found = gradient(batch, clipped(batch, Clip(9.0, 9.0, divergence=0.5)))
        assert bool(found[2:].any()) == left
        assert found[:2].all()


def test_the_cap_is_the_ratio_itself() -> None:
    """One library reads a cap of 0.28 as 1.28; here 1.28 is written 1.28."""
    one = row("a", 1, reference=[-3.0], annotations={"advantage": 1.0})
    batch = batch_of([one], [[-1.0]])
    for cap in (0.5, 1.28, 5.0):
        loss = clipped(batch, Clip(surrogate=Surrogate.CAPPED, cap=cap))
        assert gradient(batch, loss).item() == pytest.approx(-cap)  # the ratio is e^2 = 7.4


def test_means_differ_in_whom_they_favor() -> None:
    """Two bad replies of 1 and 4 tokens: a mean per sequence pushes the long one's tokens a quarter as much (long
    failures are cheap), a mean over tokens lets it have four fifths of the gradient, a constant treats all alike."""
    rows = [row("short", 1, reference=[-1.0], annotations={"advantage": -1.0}),
            row("long", 4, reference=[-1.0] * 4, annotations={"advantage": -1.0})]  # fmt: skip
    batch = batch_of(rows, [[-1.0], [-1.0] * 4])
    per_sequence, per_token, constant = (
        gradient(batch, clipped(batch, aggregation=mode, max_length=10)).tolist()
        for mode in (SEQUENCES, TOKENS, CONSTANT)
    )
    assert per_sequence == pytest.approx([0.5, *[0.125] * 4])
    assert per_token == pytest.approx([0.2] * 5)
    assert sum(per_token[1:]) == pytest.approx(0.8)
    assert constant == pytest.approx([1 / 20] * 5)


def test_a_ratio_without_bound_stays_a_number() -> None:
    far = {"behavior_logprobs": [-300.0]}
    one = row("a", 1, reference=[-300.0], annotations={"advantage": 1.0}, token_annotations=far)
    for clip in ALL:
        batch = batch_of([one], [[-1.0]])
        loss = clipped(batch, clip, Penalty(0.1))
        assert loss.isfinite()
        assert gradient(batch, loss).isfinite().all()


def test_what_is_read_must_be_there() -> None:
    one = row("a", 1, reference=[-1.0], annotations={"advantage": 1.0})
    for name, settings in {
        "importance_weight": {"weighted": True},
        BEHAVIOR: {"clip": Clip(against=BEHAVIOR)},
        "origin": {"penalty": Penalty(1.0, "origin_logprobs")},
    }.items():
        with pytest.raises(InputError, match=name):
            clipped(batch_of([one], [[-1.0]]), **settings)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="advantage"):
        clipped(batch_of([replace(one, annotations={})], [[-1.0]]))


def _known(values: tuple[float | None, ...] | None) -> list[float]:
    return [x for x in values or () if x is not None]
