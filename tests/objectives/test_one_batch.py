"""What no loss may depend on: how its batch is packed, cut into micro-batches, ordered, padded, or what tools said."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import torch
from loss_batches import of_log_ratios, slopes
from objective_batches import MADE, made
from tiny import make_tiny_model

from nightschool.models.base import load_base
from nightschool.models.lora import LoraConfig
from nightschool.objectives.loss import COUPLED, Terms
from nightschool.training.backend import AdamConfig
from nightschool.training.local import POLICY, LocalBackend
from nightschool.training.losses import LOSSES
from nightschool.types import Sample


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


def told(name: str, row: Sample) -> float:
    """Above 0 for a row that the objective was told is good, below for a bad one; 0 for what says nothing."""
    if name in ("dpo", "ipo"):
        return row.annotations["preferred"] - 0.5
    if name in ("qrpo", "rebel"):  # the rank of a reward; a pair of equal rewards stays where it is
        return row.annotations["quantile"] - 0.5 if name == "qrpo" else row.annotations["advantage"]
    return 0.0 if row.reward is None else row.reward - 0.5


@pytest.mark.parametrize("name", ["dpo", "ipo", "kto", "apo_zero", "bco", "dro", "qrpo", "rebel"])
def test_a_few_steps_tell_good_replies_from_bad_ones(backend: LocalBackend, name: str, tmp_path: Path) -> None:
    """From a fresh adapter, whose anchor is itself."""
    backend.save_adapter(tmp_path / "random")
    backend.open(None)
    backend.token_budget = 4096
    rows, terms = made(name)
    rows = [replace(row, reference_logprobs=found) for row, found in zip(rows, backend.forward(rows), strict=True)]
    for step in range(20):
        backend.forward_backward(rows, terms)
        backend.optim_step(AdamConfig(learning_rate=3e-3), step)
    moved: dict[bool, list[float]] = {True: [], False: []}
    for row, now in zip(rows, backend.forward(rows), strict=True):
        if told(name, row):
            ratio = sum((x or 0) - (y or 0) for x, y in zip(now, row.reference_logprobs or (), strict=True))
            moved[told(name, row) > 0].append(ratio)
    backend.open(tmp_path / "random")
    assert fmean(moved[True]) > fmean(moved[False]) + 0.5, moved


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
