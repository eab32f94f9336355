"""What no loss may depend on: how its batch is packed, cut into micro-batches, ordered, padded, or what tools said."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from loss_batches import of_log_ratios, slopes
from tiny import make_tiny_model

from nightschool.models.base import load_base
from nightschool.models.lora import LoraConfig
from nightschool.objectives.bco import BCO, BcoRule
from nightschool.objectives.dpo import DPO, DpoRule
from nightschool.objectives.dro import DRO, DroRule
from nightschool.objectives.kto import KTO, KtoRule
from nightschool.objectives.loss import Loss, Terms
from nightschool.objectives.qrpo import QRPO, QrpoRule
from nightschool.objectives.rebel import REBEL, RebelRule
from nightschool.objectives.sft import RFT, SFT, SftRule
from nightschool.training.local import POLICY, LocalBackend
from nightschool.training.losses import COUPLED, LOSSES
from nightschool.types import Sample

NUM_ROWS = 12

# Each objective of this family, with what `judged` rows need beside their reward.
MADE: dict[str, Callable[[], tuple[list[Sample], Loss]]] = {
    "sft": lambda: (SFT.annotate(judged(), SftRule()), SFT.loss(SftRule())),
    "dft": lambda: (RFT.annotate(judged(), sharp := SftRule(certainty_weighted=True)), RFT.loss(sharp)),
    "dpo": lambda: (DPO.annotate(paired(), DpoRule()), DPO.loss(DpoRule(noise=0.1, sft_weight=0.1))),
    "ipo": lambda: (DPO.annotate(paired(), DpoRule()), DPO.loss(DpoRule(squared=True))),
    "kto": lambda: (KTO.annotate(judged(), KtoRule()), KTO.loss(KtoRule())),
    "apo_zero": lambda: (KTO.annotate(judged(), plain := KtoRule(measured=False)), KTO.loss(plain)),
    "bco": lambda: (BCO.annotate(judged(), BcoRule()), BCO.loss(BcoRule())),
    "dro": lambda: (DRO.annotate(judged(), DroRule()), DRO.loss(DroRule())),
    "qrpo": lambda: (QRPO.annotate(scored(), QrpoRule()), QRPO.loss(QrpoRule())),
    "rebel": lambda: (REBEL.annotate(paired(), RebelRule()), REBEL.loss(RebelRule())),
}


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> LocalBackend:
    base = load_base(make_tiny_model(tmp_path_factory.mktemp("model")), torch.float32, "cpu")
    made = LocalBackend(base, LoraConfig(rank=4, alpha=8))
    made.open(None)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.lora.parameters(POLICY):
            parameter.normal_(0, 0.2, generator=generator)
    return made


def judged() -> list[Sample]:
    """Replies of different lengths to different requests, a tool's token in the middle of each."""
    rng = random.Random(5)
    samples = []
    for number in range(NUM_ROWS):
        ids = tuple(rng.randrange(3, 250) for _ in range(9 + rng.randrange(8)))
        used = tuple(place >= 4 and place != 6 for place in range(len(ids)))
        notes = {"p_hat": rng.uniform(0.2, 0.8)}
        reward = float(number % 3 > 0)
        samples.append(
            Sample(str(number), ids, used, used, weight=rng.uniform(0.5, 1), reward=reward, annotations=notes)
        )
    return samples


def paired() -> list[Sample]:
    """The same two by two on one request; the first of a pair is preferred."""
    rows = judged()
    return [
        replace(
            row,
            token_ids=(*rows[number - number % 2].token_ids[:4], *row.token_ids[4:]),
            group_id=str(number // 2),
            annotations={"preferred": float(number % 2 == 0)},
        )
        for number, row in enumerate(rows)
    ]


def scored() -> list[Sample]:
    """The same in two groups of one version, with rewards on a scale."""
    return [
        replace(row, group_id=str(number % 2), policy_version="v1", reward=number * 1.3 - 4)
        for number, row in enumerate(judged())
    ]


def made(name: str) -> tuple[list[Sample], Terms]:
    """A batch with an anchor a little off the policy, so that no log-ratio is zero."""
    rng = random.Random(6)
    rows, loss = MADE[name]()
    anchored = [
        replace(row, reference_logprobs=tuple(rng.uniform(-7, -5) if used else None for used in row.completion_mask))
        for row in rows
    ]
    return anchored, {"": loss}


def measured(backend: LocalBackend, rows: list[Sample], terms: Terms, budget: int = 4096) -> tuple[float, torch.Tensor]:
    backend.token_budget = budget
    loss = backend.forward_backward(rows, terms).loss
    found = torch.cat([p.grad.flatten() for p in backend.lora.parameters(POLICY) if p.grad is not None])
    backend._drop_gradient()
    return loss, found


def test_every_loss_of_the_family_is_here() -> None:
    """And is a sum over sequences, unless pairs or a statistic of the batch enter it."""
    names = {loss().name for loss in (lambda m=m: MADE[m]()[1] for m in MADE)}
    assert names == {"sft", "dft", "dpo", "ipo", "kto", "apo_zero", "bco", "squared_log_ratio", "rebel"}
    assert names <= LOSSES.keys()
    assert names & COUPLED == {"dpo", "ipo", "kto", "bco", "rebel"}


@pytest.mark.parametrize("name", MADE)
def test_neither_packs_nor_order_nor_micro_batches_matter(backend: LocalBackend, name: str) -> None:
    rows, terms = made(name)
    loss, gradient = measured(backend, rows, terms)
    assert gradient.norm() > 1e-5
    mixed = rows[:]
    random.Random(7).shuffle(mixed)
    for other, budget in ((rows, 40), (rows, 1), (mixed, 4096), (mixed, 40)):
        again, slope = measured(backend, other, terms, budget)
        assert again == pytest.approx(loss, rel=1e-5, abs=1e-6)
        assert (slope - gradient).abs().max() < 1e-4 * gradient.abs().max() + 1e-7


@pytest.mark.parametrize("name", MADE)
def test_neither_what_a_tool_said_nor_what_is_masked_enters(backend: LocalBackend, name: str) -> None:
    rows, terms = made(name)
    loss, gradient = measured(backend, rows, terms)
    told = [
        replace(
            row,
            reference_logprobs=tuple(
                value if used else 99.0 for value, used in zip(row.reference_logprobs or (), row.loss_mask, strict=True)
            ),
        )
        for row in rows
    ]
    empty = replace(rows[0], id="empty", loss_mask=(False,) * len(rows[0].token_ids))
    again, slope = measured(backend, [*told, empty], terms)
    assert again == pytest.approx(loss, rel=1e-6)
    torch.testing.assert_close(slope, gradient, rtol=1e-4, atol=1e-7)


def test_at_the_anchor_all_of_them_pull_the_same_way() -> None:
    """At LR = 0 each is a policy gradient, up for a good reply and down for a bad one, and they differ by a factor."""
    good = [1.0, 0.0, 0.0, 1.0]
    batch = of_log_ratios([0.0] * 4, [0, 0, 1, 1], preferred=good, desirable=good, advantage=[x - 0.5 for x in good])
    batch = replace(batch, annotations={**batch.annotations, "beta": torch.full((4,), 0.3)})
    for name in ("dpo", "ipo", "apo_zero", "bco", "rebel", "squared_log_ratio"):
        found = torch.tensor(slopes(LOSSES[name](batch), batch))
        torch.testing.assert_close(found / found[1], torch.tensor([-1.0, 1.0, 1.0, -1.0]), msg=name)
        assert found[1] > 0
    measured = of_log_ratios([0.0] * 5, desirable=[*good, 0.0], mismatched=[0.0] * 4 + [1.0])
    found = torch.tensor(slopes(LOSSES["kto"](measured), measured))
    torch.testing.assert_close(found / found[1], torch.tensor([-1.0, 1.0, 1.0, -1.0, 0.0]))
