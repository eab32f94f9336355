"""TBRM: golden G6b, that it is the sum of Bellman residuals, and the output that it alone asks of a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from loss_batches import batch_of
from rollouts import rollout
from small_backend import gathered, small_backend
from tiny import make_tiny_model
from torch import Tensor, nn

from nightschool.errors import InputError, RefusedError
from nightschool.objectives.loss import NORMALIZERS, Loss, Terms
from nightschool.objectives.tbrm import TBRM, TbrmRule
from nightschool.training.local import LocalBackend
from nightschool.training.logprobs import Head, normalizers, target_logprobs
from nightschool.training.loop import Course, LoopConfig, Now, run_loop
from nightschool.training.losses.batch import TokenBatch
from nightschool.training.losses.log_ratio import bellman
from nightschool.types import Sample

BETA = 0.1


def asked(batch: TokenBatch, normalizers: Tensor) -> TokenBatch:
    return replace(batch, outputs={NORMALIZERS: normalizers})


def test_golden_g6b() -> None:
    # V = .1 log(e + 1 + 1/e) = .140761; .1 * 2 + .140761 - 1 = -.659239; squared .434597. Loss is over 2 beta.
    first = torch.tensor([1.0, 0.0, -1.0]).logsumexp(0)
    assert BETA * first.item() == pytest.approx(0.140761, abs=1e-5)
    batch = batch_of([[-0.5, -0.5]], [[-1.5, -1.5]], reward=[1.0])
    said = torch.tensor([first.item(), 77.0], requires_grad=True)  # what comes after the first token enters nothing
    loss = bellman(asked(batch, said), BETA)
    assert loss.item() * 2 * BETA == pytest.approx(0.434597, abs=1e-5)
    to_policy, to_value = torch.autograd.grad(loss, (batch.logprobs, said))
    assert to_policy.tolist() == pytest.approx([-0.659239] * 2, abs=1e-5)  # up: it was worth more than expected
    assert to_value.tolist() == pytest.approx([-0.659239, 0.0], abs=1e-5)


def test_it_is_the_sum_of_the_tokens_bellman_residuals() -> None:
    """Q = beta logits, V = beta lse; Q(s, a) - beta log pi_ref(a) - r - V(s'), with V = 0 and r behind the last."""
    generator = torch.Generator().manual_seed(0)
    logits, reference = torch.randn(2, 4, 6, generator=generator, dtype=torch.float64)
    said = torch.tensor([0, 3, 5, 1])
    values = BETA * logits.logsumexp(1)
    after = torch.cat([values[1:], torch.zeros(1, dtype=torch.float64)])
    taken = (torch.arange(4), said)
    rewards = torch.tensor([0.0, 0.0, 0.0, 0.7])
    residuals = BETA * logits[taken] - BETA * reference.log_softmax(1)[taken] - rewards - after
    batch = batch_of([logits.log_softmax(1)[taken].tolist()], [reference.log_softmax(1)[taken].tolist()], reward=[0.7])
    loss = bellman(asked(batch, logits.logsumexp(1).float()), BETA)
    assert loss.item() == pytest.approx(residuals.sum().item() ** 2 / (2 * BETA), rel=1e-5)


def test_gradients_agree_with_finite_differences() -> None:
    owner, weights = torch.tensor([0, 0, 1]), torch.tensor([1.0, 0.3]).double()
    notes, given = {"reward": torch.tensor([1.0, 0.0]).double()}, {"reference_logprobs": torch.zeros(3).double()}

    def value(x: Tensor, said: Tensor) -> Tensor:
        return bellman(asked(TokenBatch(x, owner, weights, 3, 2, given, notes), said), 0.25)

    at = [torch.linspace(-1, 0.5, 3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(value, at)


def test_normalizers_are_those_of_a_whole_softmax() -> None:
    torch.manual_seed(0)
    head = nn.Linear(5, 11, bias=False)
    head.weight.requires_grad_(False)
    hidden, temperatures = torch.randn(4, 5, requires_grad=True), torch.tensor([1.0, 0.7, 1.3, 1.0])
    wanted = (head(hidden) / temperatures[:, None]).logsumexp(-1)
    found, pull = normalizers(hidden, head, temperatures), torch.randn(4)
    torch.testing.assert_close(found, wanted)
    (expected,) = torch.autograd.grad((wanted * pull).sum(), hidden)
    (slopes,) = torch.autograd.grad((found * pull).sum(), hidden)
    torch.testing.assert_close(slopes, expected, atol=1e-5, rtol=1e-4)
    targets = torch.tensor([3, 1, 7, 10])
    logit = (head(hidden) / temperatures[:, None]).gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(target_logprobs(hidden, Head(head), targets, temperatures) + found, logit)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def rows() -> list[Sample]:
    mask = (False, False, True, True, False, True)
    made = [Sample(str(i), (5, 6 + i // 2, 20 + i, 30, 40, 41), mask, mask, reward=i % 2) for i in range(4)]
    return [
        replace(sample, reference_logprobs=tuple(-5.0 if used else None for used in mask))
        for sample in TBRM.annotate(made, TbrmRule())
    ]


def test_beside_a_coupled_loss_packs_change_nothing(folder: Path) -> None:
    terms: Terms = {"": TBRM.loss(TbrmRule(BETA)), "pairs": Loss("dpo", {"beta": 0.1})}
    pairs = [
        replace(one, id=f"p{one.id}", term="pairs", group_id=str(int(one.id) // 2),
                annotations={"preferred": float(int(one.id) % 2)})
        for one in rows()
    ]  # fmt: skip
    batch, whole, cut = [*rows(), *pairs], small_backend(folder), small_backend(folder, 6)
    assert len(cut._packs(batch)) > len(whole._packs(batch))
    first, second = (made.forward_backward(batch, terms) for made in (whole, cut))
    assert first.loss == pytest.approx(second.loss, rel=1e-5)
    torch.testing.assert_close(gathered(whole), gathered(cut), atol=1e-5, rtol=1e-4)


def test_a_part_of_a_session_is_refused() -> None:
    with pytest.raises(RefusedError, match="one row"):
        TBRM.annotate([replace(rollout(1.0), annotations={"num_rows": 2.0})], TbrmRule())


class Nobody:
    def step(self, now: Now) -> None:
        del now

    def wants_halt(self) -> bool:
        return False


def test_a_backend_that_knows_probabilities_alone_is_refused(folder: Path, tmp_path: Path) -> None:
    """As a server that speaks of log-probabilities only; the loss alone says the same."""
    made = small_backend(folder)
    made.outputs = frozenset({"logprobs"})  # type: ignore[misc]
    assert isinstance(made, LocalBackend)
    course = Course(tuple(rows()), (), {"": TBRM.loss(TbrmRule())}, True, None, LoopConfig())
    with pytest.raises(RefusedError, match="no normalizers"):
        run_loop(made, course, tmp_path, Nobody())
    with pytest.raises(InputError, match="no normalizers"):
        bellman(batch_of([[-1.0]], [[-1.0]], reward=[1.0]), BETA)
