"""Losses of a whole batch: packs change nothing, terms have denominators of their own, whoever shares a token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_backend import gathered, small_backend
from tiny import make_tiny_model

from nightschool.errors import InputError
from nightschool.objectives.loss import LOGPROBS, Aggregation, Loss
from nightschool.training.losses.mixing import Totals, count, total_loss
from nightschool.types import Sample

PROMPT = (5, 6, 7, 8)
SFT = Loss("sft", {"aggregation": Aggregation.TOKEN_MEAN})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def row(name: str, reply: tuple[int, ...], group: str | None = None, **notes: float) -> Sample:
    mask = (False,) * len(PROMPT) + (True,) * len(reply)
    reference = tuple(-5.0 if used else None for used in mask)
    return Sample(name, PROMPT + reply, mask, mask, group_id=group, annotations=notes, reference_logprobs=reference)


def pairs() -> list[Sample]:
    return [
        row(f"{pair}{side}", (10 + pair, 20 + side, 30 + 2 * pair + side), str(pair), preferred=float(side == 0))
        for pair in range(3)
        for side in range(2)
    ]


def test_a_coupled_loss_does_not_see_how_its_batch_is_packed(folder: Path) -> None:
    terms = {"": Loss("dpo", {"beta": 0.5})}
    whole, cut = small_backend(folder, 4096), small_backend(folder, 8)
    assert len(cut._packs(pairs())) == 6  # one row a pack: no pair has both of its sides in one
    expected = whole.forward_backward(pairs(), terms)
    report = cut.forward_backward(pairs(), terms)
    assert report.loss == pytest.approx(expected.loss, abs=1e-6)
    torch.testing.assert_close(gathered(cut), gathered(whole), atol=1e-6, rtol=1e-4)


def test_terms_have_denominators_of_their_own() -> None:
    # term a: two tokens, -1 and -2, mean 1.5; term b: one token, -4, mean 4; 1.5 + 0.5 * 4 = 3.5
    samples = [replace(row("a", (9, 9)), term="a"), replace(row("b", (9,)), term="b")]
    terms = {"a": SFT, "b": Loss("sft", {"aggregation": Aggregation.SEQUENCE_SUM}, 0.5)}
    logprobs = torch.tensor([-1.0, -2.0, -4.0])
    assert total_loss(terms, samples, {LOGPROBS: logprobs}, count(samples)).item() == pytest.approx(3.5)
    assert count(samples) == {"a": Totals(2, 1), "b": Totals(1, 1)}


def test_what_serves_two_terms_is_computed_once(folder: Path) -> None:
    sample = row("a", (9, 9))
    made = small_backend(folder, 4096)
    both = [replace(sample, term="a"), replace(sample, term="b")]
    report = made.forward_backward(both, {"a": SFT, "b": replace(SFT, coefficient=2.0)})
    twice = gathered(made)
    one = made.forward_backward([sample], {"": SFT})
    assert report.num_tokens == one.num_tokens == 6
    torch.testing.assert_close(twice, 3 * gathered(made))


def test_a_sample_of_no_term_is_an_error() -> None:
    samples = [row("a", (9,))]
    with pytest.raises(InputError, match="no loss"):
        total_loss({"b": SFT}, samples, {LOGPROBS: torch.tensor([-1.0])}, count(samples))
