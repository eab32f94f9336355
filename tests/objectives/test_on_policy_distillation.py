"""On-policy distillation: golden 6.4, its requirements, and a reward's term beside it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_backend import gathered, small_backend
from tiny import make_tiny_model
from torch import Tensor

from nightschool.errors import RefusedError
from nightschool.objectives.loss import Aggregation, Loss, tried
from nightschool.objectives.on_policy_distillation import ON_POLICY_DISTILLATION, TEACHER, OnPolicyRule, annotate, loss
from nightschool.training.losses.batch import TokenBatch
from nightschool.training.losses.distillation import reverse_kl
from nightschool.types import Sample

P, Q = [0.6, 0.3, 0.1], [0.2, 0.7, 0.1]


def row(name: str = "a", **fields: object) -> Sample:
    taught = {TEACHER: (None, None, -0.5, None, -2.0)}  # a tool's token in between
    mask = (False, False, True, False, True)
    return replace(Sample(name, (7, 8, 9, 10, 11), mask, mask, token_annotations=taught), **fields)  # type: ignore[arg-type]


def drawn(logprobs: Tensor, weights: list[float]) -> TokenBatch:
    """Each of three tokens as often as `weights` say."""
    teacher = torch.tensor(Q, dtype=torch.float64).log()
    return TokenBatch(
        logprobs,
        torch.arange(3),
        torch.tensor(weights, dtype=torch.float64),
        1,
        1,
        {TEACHER: teacher, "reference_logprobs": torch.tensor(P, dtype=torch.float64).log()},
    )


def test_the_advantages_of_golden_6_4() -> None:
    # p (log q - log p), the gap cut at 1 nat: 0.6 * -1 (it is -1.098612), 0.3 * 0.847298, 0.1 * 0
    logprobs = torch.tensor(P, dtype=torch.float64).log().requires_grad_()
    settings = loss(OnPolicyRule(clip=1.0)).settings
    reverse_kl(drawn(logprobs, P), **{**settings, "aggregation": Aggregation.SEQUENCE_SUM}).backward()
    assert logprobs.grad is not None
    assert (-logprobs.grad).tolist() == pytest.approx([-0.6, 0.254189, 0.0], abs=1e-5)


def test_without_a_clip_its_expectation_is_the_gradient_of_the_reverse_divergence() -> None:
    # 6.2: p (log(p / q) - KL) at KL = 0.404978
    logits = torch.tensor(P, dtype=torch.float64).log().requires_grad_()
    settings = loss(OnPolicyRule(clip=50.0)).settings
    reverse_kl(drawn(logits.log_softmax(0), P), **settings).backward()
    assert logits.grad is not None
    assert logits.grad.tolist() == pytest.approx([0.416181, -0.375683, -0.040498], abs=1e-5)


def test_a_stale_token_weighs_what_the_policy_makes_of_it_up_to_the_cap() -> None:
    # gap 0.5 each; policy over start e^0.5 = 1.648721, and e^3, cut to 2
    for away, weight in ((0.5, math.exp(0.5)), (3.0, 2.0)):
        lp = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
        known = {TEACHER: torch.tensor([-0.5]).double(), "reference_logprobs": torch.tensor([-1.0 - away]).double()}
        batch = TokenBatch(lp, torch.tensor([0]), torch.ones(1).double(), 1, 1, known)
        reverse_kl(batch, **loss(OnPolicyRule()).settings).backward()
        assert lp.grad is not None
        assert lp.grad.item() == pytest.approx(-0.5 * weight)


def test_the_figure_is_the_mean_gap_at_the_window_s_start() -> None:
    rows = [row(reference_logprobs=(None, None, -1.0, None, -1.0))]
    annotated = ON_POLICY_DISTILLATION.after_anchor
    assert annotated is not None
    # ((-1 + 0.5) + (-1 + 2)) / 2
    assert annotated(rows, OnPolicyRule()).figures == {"teacher_kl": pytest.approx(0.25)}


@pytest.mark.parametrize(
    ("sample", "rule", "says"),
    [
        (row(token_annotations={}), OnPolicyRule(), "the teacher's log-probabilities"),
        (row(token_annotations={TEACHER: (None, None, -0.5, None, None)}), OnPolicyRule(), "Sample a has none"),
        (row(reference_logprobs=(None,) * 5), OnPolicyRule(), "one anchor per buffer"),
        (row(), OnPolicyRule(clip=0.0), "above zero"),
        (row(), OnPolicyRule(max_ratio=0.0), "above zero"),
        (row(), OnPolicyRule(gate=-1.0), "above zero"),
    ],
)
def test_what_is_refused(sample: Sample, rule: OnPolicyRule, says: str) -> None:
    assert annotate([row()], OnPolicyRule()) == [row()]
    with pytest.raises(RefusedError, match=says):
        annotate([sample], rule)


def test_rows_are_tried_as_if_the_teacher_had_scored_them() -> None:
    bare = row(token_annotations={})
    assert len(tried(ON_POLICY_DISTILLATION, [bare], OnPolicyRule())) == 1
    assert TEACHER not in bare.token_annotations
    with pytest.raises(RefusedError, match="has none"):
        tried(ON_POLICY_DISTILLATION, [replace(bare, loss_mask=(False,) * 5)], OnPolicyRule())


def test_a_reward_s_term_beside_it_adds_its_own_gradient(tmp_path: Path) -> None:
    """6.4's hybrid: the gradient of the mix is that of both, each with denominators of its own."""
    backend = small_backend(make_tiny_model(tmp_path / "model"))
    taught = [row(), row("b", token_ids=(7, 8, 12, 13, 14))]
    anchored = [
        replace(one, reference_logprobs=scores) for one, scores in zip(taught, backend.forward(taught), strict=True)
    ]
    judged = [replace(one, term="reward", token_annotations={}, annotations={"advantage": 1.0}) for one in anchored[:1]]
    terms = {"": loss(OnPolicyRule()), "reward": Loss("reinforce", {"aggregation": Aggregation.SEQUENCE_MEAN}, 0.5)}

    def gradient(rows: list[Sample]) -> Tensor:
        backend.forward_backward(rows, terms)
        return gathered(backend)

    both, alone, reward = gradient(anchored + judged), gradient(anchored), gradient(judged)
    assert alone.norm() > 0
    assert reward.norm() > 0
    torch.testing.assert_close(both, alone + reward, rtol=1e-4, atol=1e-6)
