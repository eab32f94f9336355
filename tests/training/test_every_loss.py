"""What every loss of the library keeps, whichever objective names it: who is in a batch, and who is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nightschool.objectives.loss import COUPLED, LOGPROBS, NORMALIZERS, TOP, VALUES, Aggregation, Loss
from nightschool.training.losses import LOSSES
from nightschool.training.losses.mixing import count, total_loss
from nightschool.types import Sample

PROMPT, LENGTHS, TOOL, K = 2, (3, 5, 4, 6), 3, 2  # a tool wrote the token at place 3 of every row
SETTINGS: dict[str, dict[str, Any]] = {
    "reinforce": {"aggregation": Aggregation.SEQUENCE_MEAN},
    "topr": {"aggregation": Aggregation.TOKEN_MEAN},
    "group_variance": {"beta": 0.3},
    "bellman": {"beta": 0.3},
    "clipped": {"weighted": True},
}
OUTPUTS = {LOGPROBS: (), VALUES: (), NORMALIZERS: (), TOP: (K,)}


def batch() -> list[Sample]:
    """Two groups of two replies, with everything that some loss reads."""
    chance, rows = np.random.default_rng(3), []
    for place, length in enumerate(LENGTHS):
        mask = tuple(at >= PROMPT and at != TOOL for at in range(PROMPT + length))

        def drawn(mask: tuple[bool, ...] = mask) -> tuple[float | None, ...]:
            return tuple(-float(chance.random()) if used else None for used in mask)

        good = float(place % 2 == 0)
        notes = {"advantage": good - 0.4, "beta": 0.25, "desirable": good, "preferred": good, "reward": good}
        names = ("behavior_logprobs", "teacher_logprobs", "importance_weight", "return", "reference_values")
        top = np.log(0.1 + 0.3 * chance.random((len(mask), K)))
        rows.append(
            Sample(
                str(place), tuple(range(len(mask))), mask, mask, 1.0 + place / 3, good, group_id=str(place // 2),
                reference_logprobs=drawn(), annotations={**notes, "mismatched": float(place > 1)},
                token_annotations={**{name: drawn() for name in names}, "teacher_top": top},
            )
        )  # fmt: skip
    return rows


def said(rows: Sequence[Sample]) -> dict[str, Tensor]:
    """What the models say of the loss tokens, the same of each sample wherever it stands."""
    found: dict[str, list[Tensor]] = {name: [] for name in OUTPUTS}
    for sample in rows:
        generator = torch.Generator().manual_seed(len(sample.token_ids))
        for name, shape in OUTPUTS.items():
            found[name].append(-0.1 - 0.6 * torch.rand(sum(sample.loss_mask), *shape, generator=generator))
    outputs = {name: torch.cat(parts) for name, parts in found.items()}
    return {**outputs, TOP: outputs[TOP] - 1.0}  # two tokens with at most three quarters of the mass


def told(
    name: str, rows: Sequence[Sample], whole: Sequence[Sample] | None = None
) -> tuple[float, Mapping[str, Tensor]]:
    """The share of `rows` in the loss of a whole batch, and by sample its gradient with respect to all outputs."""
    outputs = {kind: out.requires_grad_() for kind, out in said(rows).items()}
    loss = total_loss({"": Loss(name, SETTINGS.get(name, {}))}, rows, outputs, count(whole or rows))
    slopes = torch.autograd.grad(loss, list(outputs.values()), allow_unused=True, materialize_grads=True)
    flat = torch.cat([part.flatten(1) if part.ndim > 1 else part[:, None] for part in slopes], dim=1)
    lengths = [sum(sample.loss_mask) for sample in rows]
    return loss.item(), {s.id: part for s, part in zip(rows, flat.split(lengths), strict=True)}


def same(one: tuple[float, Mapping[str, Tensor]], other: tuple[float, Mapping[str, Tensor]]) -> None:
    assert one[0] == pytest.approx(other[0], rel=1e-5, abs=1e-7)
    for name, slopes in one[1].items():
        torch.testing.assert_close(slopes, other[1][name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", LOSSES)
def test_order_does_not_matter(name: str) -> None:
    found = told(name, batch())
    assert any(slopes.any() for slopes in found[1].values()), "the batch teaches something"
    same(found, told(name, batch()[::-1]))


@pytest.mark.parametrize("name", LOSSES)
def test_a_row_without_loss_tokens_counts_nowhere(name: str) -> None:
    rows = batch()
    silent = replace(rows[0], id="silent", loss_mask=(False,) * len(rows[0].loss_mask))
    same(told(name, rows), told(name, [*rows, silent]))


@pytest.mark.parametrize("name", LOSSES)
def test_what_is_known_of_others_tokens_enters_nothing(name: str) -> None:
    """Of the prompt and of what a tool wrote: whatever anchor, engine, teacher or critic say of it."""

    def poisoned(values: Any, mask: Sequence[bool]) -> Any:
        if isinstance(values, np.ndarray):
            return np.where(np.asarray(mask)[:, None], values, -77.0)
        return tuple(value if used else -77.0 for value, used in zip(values, mask, strict=True))

    spoiled = [
        replace(
            s,
            reference_logprobs=poisoned(s.reference_logprobs, s.loss_mask),
            token_annotations={key: poisoned(values, s.loss_mask) for key, values in s.token_annotations.items()},
        )
        for s in batch()
    ]
    found, expected = told(name, spoiled), told(name, batch())
    assert found[0] == expected[0]
    assert all(torch.equal(found[1][key], slopes) for key, slopes in expected[1].items())


@pytest.mark.parametrize("name", LOSSES)
def test_a_batch_that_weighs_twice_teaches_twice(name: str) -> None:
    loss, slopes = told(name, batch())
    twice = told(name, [replace(sample, weight=2 * sample.weight) for sample in batch()])
    same((2 * loss, {key: 2 * part for key, part in slopes.items()}), twice)


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in COUPLED])
def test_shares_add_up(name: str) -> None:
    """Of micro-batches or ranks, each row alone: denominators are the whole batch's."""
    rows = batch()
    shares = [told(name, [one], rows) for one in rows]
    same((sum(loss for loss, _ in shares), {k: part for _, parts in shares for k, part in parts.items()}),
         told(name, rows))  # fmt: skip
