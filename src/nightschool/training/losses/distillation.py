"""Distillation: the policy is drawn to what a teacher makes of the same tokens. The teacher never gets a gradient.

On logged text the sampled-token forms are regressions of a token's log-ratio, well defined for whoever sampled it; the
divergences compare whole distributions, or their K likeliest tokens with one bucket for the rest.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nightschool.errors import InputError
from nightschool.objectives.loss import TOP, Aggregation
from nightschool.training.losses.batch import TokenBatch

TEACHER, REFERENCE = "teacher_logprobs", "reference_logprobs"
ROUNDING = 1e-6  # of probabilities that should add up to one


def hindsight(batch: TokenBatch, clip: float = 5.0, aggregation: Aggregation = Aggregation.SEQUENCE_MEAN) -> Tensor:
    """Half the squared distance of a token's log-probability to the teacher's, linear beyond `clip` nats.

    Where both are scored by current weights its gradient is that of the surrogate sg(lp - lp_T) * lp, whoever sampled
    the token; unlike that one it is bounded below, and says how far the two are apart. Beyond `clip` the pull is
    constant: a strong hint moves a token no further.

    Implements: Kleine Buening et al., arXiv:2603.12273, offline form, as a regression (unverified against the paper).
    Shapes: `teacher_logprobs` (N,).
    """
    distance = batch.logprobs - batch.given(TEACHER)
    inside = distance.abs() <= clip
    values = torch.where(inside, 0.5 * distance.square(), clip * distance.abs() - 0.5 * clip * clip)
    return batch.reduced(values, aggregation)


def reverse_kl(
    batch: TokenBatch,
    gate: float | None = None,
    max_ratio: float | None = None,
    clip: float | None = None,
    aggregation: Aggregation = Aggregation.TOKEN_MEAN,
) -> Tensor:
    """sg(lp - lp_T) * lp on sampled tokens: in expectation over the policy the gradient of the reverse divergence.

    `gate`: each token counts sigma(gate * (lp_T - lp)), so that where the teacher likes it less it hardly counts.
    `max_ratio`: a token counts min(policy / reference, max_ratio), the window's start being what sampled it.
    `clip`: a teacher farther away than so many nats draws a token no harder.

    Implements: Lu et al. (on-policy distillation); the gate of arXiv:2605.15155 (unverified). The value says little.
    Shapes: `teacher_logprobs` (N,), `reference_logprobs` (N,) with `max_ratio`.
    """
    gap = batch.given(TEACHER) - batch.logprobs.detach()
    if clip is not None:
        gap = gap.clamp(-clip, clip)
    weights = torch.ones_like(gap) if gate is None else torch.sigmoid(gate * gap)
    if max_ratio is not None:
        weights = weights * (batch.logprobs.detach() - batch.given(REFERENCE)).exp().clamp(max=max_ratio)
    return batch.reduced(-weights * gap * batch.logprobs, aggregation)


def top_divergence(
    batch: TokenBatch,
    alpha: float = 0.5,
    max_ratio: float | None = 2.0,
    aggregation: Aggregation = Aggregation.TOKEN_MEAN,
) -> Tensor:
    """The divergence of policy and teacher over each place's likeliest tokens and one bucket for all others.

    `max_ratio`: a token counts min(policy / reference, max_ratio), the window's start being what sampled it.

    Implements: Huebotter et al., arXiv:2601.20802.
    Shapes: the output `top` (N, K), `teacher_top` (N, K).
    """
    values = divergence(with_tail(batch.output(TOP)), with_tail(batch.given("teacher_top")), alpha)
    if max_ratio is not None:
        values = values * (batch.logprobs.detach() - batch.given(REFERENCE)).exp().clamp(max=max_ratio)
    return batch.reduced(values, aggregation)


def top_pull(
    batch: TokenBatch,
    clip: float = 1.0,
    max_ratio: float | None = 2.0,
    aggregation: Aggregation = Aggregation.TOKEN_MEAN,
) -> Tensor:
    """-sum over each place's likeliest tokens of sg(A) lp, with A = clip(lp_T - lp, -clip, clip) p.

    Without the clip its gradient is that of the reverse divergence over these tokens alone; with it a token that the
    teacher is sure of draws no harder than `clip` nats do. The value says little.

    Implements: arXiv:2603.10165, the form over the student's likeliest tokens (unverified).
    Shapes: the output `top` (N, K), `teacher_top` (N, K).
    """
    student = batch.output(TOP)
    gap = (batch.given("teacher_top") - student.detach()).clamp(-clip, clip)
    values = -(gap * student.detach().exp() * student).sum(dim=-1)
    if max_ratio is not None:
        values = values * (batch.logprobs.detach() - batch.given(REFERENCE)).exp().clamp(max=max_ratio)
    return batch.reduced(values, aggregation)


def divergence(student: Tensor, teacher: Tensor, alpha: float) -> Tensor:
    """The generalized Jensen-Shannon divergence of two distributions at each of N places.

    alpha 0: KL(teacher || student), forward; 1: KL(student || teacher), reverse; between them, with the mixture
    m = (1 - alpha) student + alpha teacher, (1 - alpha) KL(student || m) + alpha KL(teacher || m).

    Implements: Agarwal et al., arXiv:2306.13649, in the convention of Huebotter et al., arXiv:2601.20802.
    Shapes: log-probabilities (N, K) each, rows that add up to one -> (N,).
    """
    teacher = teacher.detach()
    if alpha == 0:
        return _kl(teacher, student)
    if alpha == 1:
        return _kl(student, teacher)
    weights = torch.tensor([1 - alpha, alpha], dtype=student.dtype, device=student.device).log()
    mixture = torch.logaddexp(student + weights[0], teacher + weights[1])
    return (1 - alpha) * _kl(student, mixture) + alpha * _kl(teacher, mixture)


def with_tail(top: Tensor) -> Tensor:
    """The log-probabilities of K tokens and, as one more, of everything else: (N, K) -> (N, K + 1).

    Raises: InputError when the K are more than everything.
    """
    total = top.exp().sum(dim=-1)
    if (total > 1 + ROUNDING).any():
        raise InputError("Log-probabilities do not add up.", f"Those of {top.shape[-1]} tokens exceed one.", "")
    rest = torch.log1p(-total.clamp(max=1 - ROUNDING))
    return torch.cat([top, rest[..., None]], dim=-1)


def _kl(p: Tensor, q: Tensor) -> Tensor:
    return (p.exp() * (p - q)).sum(dim=-1)
