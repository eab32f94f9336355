"""Goldens G7a, G7b and those of 6.4 and 6.6; the facts about gradients of 6.2."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from nightschool.errors import InputError
from nightschool.objectives.advantages import Baseline, Scale, compared
from nightschool.objectives.loss import TOP, Aggregation
from nightschool.training.losses.batch import TokenBatch
from nightschool.training.losses.distillation import (
    divergence,
    hindsight,
    reverse_kl,
    top_divergence,
    top_pull,
    with_tail,
)

P, Q = [0.6, 0.3, 0.1], [0.2, 0.7, 0.1]


def logs(*values: float, grad: bool = False) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).log().requires_grad_(grad)


def batch_of(rows: list[list[float]], **tokens: list[list[float]]) -> TokenBatch:
    flat = torch.tensor([x for row in rows for x in row], dtype=torch.float64, requires_grad=True)
    owner = torch.tensor([i for i, row in enumerate(rows) for _ in row])
    given = {k: torch.tensor([x for row in v for x in row], dtype=torch.float64) for k, v in tokens.items()}
    weights = torch.ones(len(rows), dtype=torch.float64)
    return TokenBatch(flat, owner, weights, len(flat), len(rows), given)


@pytest.mark.parametrize(("alpha", "expected"), [(1, 0.404978), (0, 0.373386), (0.5, 0.093466), (0.25, 0.069434)])
def test_the_divergences_of_golden_g7a(alpha: float, expected: float) -> None:
    assert divergence(logs(*P)[None], logs(*Q)[None], alpha).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("alpha", "slopes"),
    [
        (1, [0.416181, -0.375683, -0.040498]),  # p (log(p / q) - KL)
        (0, [0.4, -0.4, 0.0]),  # p - q
        (0.5, [0.094630, -0.090129, -0.004502]),
    ],
)
def test_the_logit_gradients_of_golden_g7a(alpha: float, slopes: list[float]) -> None:
    logits = logs(*P, grad=True)
    divergence(logits.log_softmax(0)[None], logs(*Q)[None], alpha).sum().backward()
    assert logits.grad is not None
    assert logits.grad.tolist() == pytest.approx(slopes, abs=1e-6)


def test_the_teacher_gets_no_gradient() -> None:
    student, teacher = logs(*P, grad=True), logs(*Q, grad=True)
    divergence(student[None], teacher[None], 0.5).sum().backward()
    assert student.grad is not None
    assert teacher.grad is None


def test_the_tail_of_golden_g7a() -> None:
    p, q = logs(*P)[None], logs(*Q)[None]
    one_p, one_q = with_tail(p[:, :1]), with_tail(q[:, :1])
    assert divergence(one_p, one_q, 1).item() == pytest.approx(0.381909, abs=1e-5)
    assert divergence(one_p, one_q, 0).item() == pytest.approx(0.334795, abs=1e-5)
    two_p, two_q = with_tail(p[:, :2]), with_tail(q[:, :2])
    assert divergence(two_p, two_q, 1).item() == pytest.approx(0.404978, abs=1e-5)  # nothing is left to tell
    renormalized = [x[:, :2].log_softmax(-1) for x in (p, q)]
    assert divergence(renormalized[0], renormalized[1], 1).item() == pytest.approx(0.449976, abs=1e-5)
    with pytest.raises(InputError, match="exceed one"):
        with_tail(logs(0.7, 0.7)[None])


@pytest.mark.parametrize(("place", "value"), [(0, -0.561199), (1, 1.020124)])
def test_the_sampled_token_of_golden_g7a(place: int, value: float) -> None:
    # log-ratio teacher - student: -1.098612 and 0.847298; sg(lp - lp_T) * lp
    batch = batch_of([[math.log(P[place])]], teacher_logprobs=[[math.log(Q[place])]])
    assert reverse_kl(batch).item() == pytest.approx(value, abs=1e-6)


def test_in_expectation_the_sampled_token_has_the_gradient_of_the_reverse_divergence() -> None:
    logits = logs(*P, grad=True)
    logprobs = logits.log_softmax(0)
    weights, owner = torch.tensor(P, dtype=torch.float64), torch.arange(3)
    batch = TokenBatch(logprobs, owner, weights, 1, 1, {"teacher_logprobs": logs(*Q)})  # each token as often as drawn
    reverse_kl(batch).backward()
    assert logits.grad is not None
    assert logits.grad.tolist() == pytest.approx([0.416181, -0.375683, -0.040498], abs=1e-6)


def test_tokens_of_another_sampler_are_weighed_up_to_a_cap() -> None:
    # G7a: exp(1) clipped to 2; log-ratio 0.404978... of a token whose surrogate is 0.404978 -> 2 * 0.404978 = 0.809956
    lp = -0.404978
    batch = batch_of([[lp]], teacher_logprobs=[[lp + 1]], reference_logprobs=[[lp - 1]])
    assert reverse_kl(batch, max_ratio=2.0).item() == pytest.approx(0.809956, abs=1e-6)


def test_only_rows_with_a_teacher_count_in_the_mean() -> None:
    # G7a: 0.4 and 0.2 on the first, the second has none: 0.3, not 0.6 / 5 = 0.12. It is left out of the batch
    wanted = [0.4, 0.2]
    batch = batch_of([[0.0, 0.0]], teacher_logprobs=[[-math.sqrt(2 * x) for x in wanted]])
    assert hindsight(batch, aggregation=Aggregation.TOKEN_MEAN).item() == pytest.approx(0.3)


def test_golden_g7b() -> None:
    # a = lp_o - lp = [-0.2, 0.2, -2]; squared form (0.04 + 0.04 + 4) / 2 / 3 = 0.68
    policy, teacher = [-1.0, -0.5, -2.0], [-1.2, -0.3, -4.0]
    batch = batch_of([policy], teacher_logprobs=[teacher])
    squared = hindsight(batch)
    assert squared.item() == pytest.approx(0.68)
    squared.backward()
    assert batch.logprobs.grad is not None
    of_square = batch.logprobs.grad.clone()
    other = batch_of([policy], teacher_logprobs=[teacher])
    surrogate = reverse_kl(other, aggregation=Aggregation.SEQUENCE_MEAN)
    # the page's offline loss: - mean(a lp) = -(0.2 - 0.1 + 4) / 3 = -1.366667
    assert surrogate.item() == pytest.approx(-1.366667, abs=1e-6)
    surrogate.backward()
    assert other.logprobs.grad is not None
    torch.testing.assert_close(of_square, other.logprobs.grad)  # one gradient


def test_centered_log_ratios_of_golden_g7b() -> None:
    """As the online form takes them, which compares a reply with itself; the regression on logs is not centered."""
    [centered] = compared([[-0.2, 0.2, -2.0]], Baseline.MEAN, Scale.NONE, 1, 0.0)
    assert centered == pytest.approx([0.466667, 0.866667, -1.333333], abs=1e-6)


def test_a_geometric_target_of_section_7_is_a_shorter_step_to_the_teacher() -> None:
    # p^.5 q^.5 / Z of golden G7a: [0.382914, 0.506548, 0.110538], and the reverse divergence to it 0.102302
    p, q = logs(*P), logs(*Q)
    target = (0.5 * p + 0.5 * q).log_softmax(-1)
    assert target.exp().tolist() == pytest.approx([0.382914, 0.506548, 0.110538], abs=1e-6)
    assert divergence(p[None], target[None], 1.0).item() == pytest.approx(0.102302, abs=1e-6)
    # with the policy's own half held still, its gradient is half of that of the plain divergence: a smaller rate
    logits = p.clone().requires_grad_()
    own = logits.log_softmax(-1)
    near, far = (divergence(own[None], to[None], 1.0).sum() for to in ((0.5 * p + 0.5 * q).log_softmax(-1), q))
    (slow,) = torch.autograd.grad(near, logits, retain_graph=True)
    (fast,) = torch.autograd.grad(far, logits)
    torch.testing.assert_close(slow, fast / 2)


def test_the_gates_of_6_6() -> None:
    # sigma(5 * [0.2, -0.2, -1]) = [0.731059, 0.268941, 0.006693]
    gaps = [0.2, -0.2, -1.0]
    batch = batch_of([[-1.0, -1.0, -1.0]], teacher_logprobs=[[-1.0 + gap for gap in gaps]])
    reverse_kl(batch, gate=5.0, aggregation=Aggregation.SEQUENCE_SUM).backward()
    assert batch.logprobs.grad is not None
    gates = [-g / gap for g, gap in zip(batch.logprobs.grad.tolist(), gaps, strict=True)]
    assert gates == pytest.approx([0.731059, 0.268941, 0.006693], abs=1e-6)


def test_a_far_teacher_pulls_no_harder_than_the_clip() -> None:
    batch = batch_of([[-1.0, -1.0, -1.0]], teacher_logprobs=[[-11.0, -1.5, 0.0]])
    hindsight(batch, clip=2.0, aggregation=Aggregation.SEQUENCE_SUM).backward()
    assert batch.logprobs.grad is not None
    assert batch.logprobs.grad.tolist() == pytest.approx([2.0, 0.5, -1.0])  # down, down, up


def test_a_divergence_over_top_tokens_is_that_of_its_pieces() -> None:
    # one token, top 2 of golden G7a with a tail: the reverse divergence 0.404978, weighed by exp(0.5) and by 2 at most
    for ratio, weight in ((0.5, math.exp(0.5)), (3.0, 2.0)):
        batch = TokenBatch(
            torch.tensor([-1.0], dtype=torch.float64),
            torch.tensor([0]),
            torch.ones(1, dtype=torch.float64),
            1,
            1,
            {"teacher_top": logs(*Q)[None, :2], "reference_logprobs": torch.tensor([-1.0 - ratio])},
            outputs={TOP: logs(*P)[None, :2]},
        )
        assert top_divergence(batch, alpha=1.0).item() == pytest.approx(weight * 0.404978, abs=1e-5)


def test_a_pull_on_top_tokens_is_clipped_and_weighed_by_the_student() -> None:
    """Golden 6.4: p (0.6, 0.3, 0.1), q (0.2, 0.7, 0.1) give A = (-0.6, 0.254189, 0); minus that is the slope."""

    def batch(top: Tensor) -> TokenBatch:
        own = {"teacher_top": logs(*Q)[None], "reference_logprobs": torch.tensor([-1.0])}
        return TokenBatch(torch.tensor([-1.0]), torch.tensor([0]), torch.ones(1), 1, 1, own, outputs={TOP: top})

    top = logs(*P)[None].requires_grad_()
    top_pull(batch(top), clip=1.0).backward()
    assert top.grad is not None
    assert top.grad[0].tolist() == pytest.approx([0.6, -0.254189, 0.0], abs=1e-5)
    # without a clip, through the softmax: the reverse divergence's slope on logits, golden G7a
    logits = logs(*P)[None].requires_grad_()
    top_pull(batch(logits.log_softmax(-1)), clip=100.0).backward()
    assert logits.grad is not None
    assert logits.grad[0].tolist() == pytest.approx([0.416181, -0.375683, -0.040498], abs=1e-5)


def test_gradients_agree_with_finite_differences() -> None:
    teacher = torch.tensor([-0.7, -2.5, -0.1], dtype=torch.float64)

    def value(x: Tensor) -> Tensor:
        batch = TokenBatch(x, torch.tensor([0, 0, 1]), torch.tensor([1.0, 0.4]).double(), 3, 2, {TEACHER: teacher})
        return hindsight(batch, clip=1.0)

    assert torch.autograd.gradcheck(value, torch.tensor([-0.5, -0.6, -0.9], dtype=torch.float64, requires_grad=True))
    other = logs(*Q)[None]
    assert torch.autograd.gradcheck(lambda x: divergence(x.log_softmax(-1), other, 0.5), logs(*P, grad=True)[None])


TEACHER = "teacher_logprobs"
