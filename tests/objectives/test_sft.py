from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from loss_batches import agrees_with_finite_differences, batch_of, row, slopes
from tiny import make_tiny_model

from nightschool.curation.written import read_written
from nightschool.errors import InputError, RefusedError, TooLittleDataError
from nightschool.objectives.loss import LOGPROBS, Aggregation, Material
from nightschool.objectives.sft import RFT, SFT, SftRule
from nightschool.rendering.renderer import Renderer
from nightschool.training.losses.likelihood import dft, sft
from nightschool.training.losses.mixing import count, total_loss

TOKEN_MEAN = Aggregation.TOKEN_MEAN
G1 = [[-1.0, -2.0], [-0.2, -0.3, -0.4]]  # the tokens that golden G1 leaves unmasked


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        (Aggregation.TOKEN_MEAN, 0.78),  # (3 + 0.9) / 5
        (Aggregation.SEQUENCE_MEAN, 0.9),  # (3 / 2 + 0.9 / 3) / 2
        (Aggregation.SEQUENCE_SUM, 1.95),  # (3 + 0.9) / 2
        (Aggregation.CONSTANT, 0.4875),  # (3 + 0.9) / (2 * 4)
    ],
)
def test_golden_g1(aggregation: Aggregation, expected: float) -> None:
    # the page has 0.9750 for the constant mode, which is 3.9 / 4: one sequence; its formula gives 3.9 / (2 * 4)
    assert sft(batch_of(G1), aggregation, 4).item() == pytest.approx(expected, abs=1e-5)


def test_golden_g1_from_masks() -> None:
    """The values of the page with their masked tokens, by way of samples."""
    masks = [(False, False, True, True, False), (False, True, True, True, False)]
    samples = [replace(row("s", (1, 2, 3, 4, 5)), completion_mask=mask, loss_mask=mask) for mask in masks]
    # logits at position p predict token p + 1: A's four values stand at tokens 1..4, its mask [0, 1, 1, 0] with them
    logprobs = torch.tensor([-1.0, -2.0, -0.2, -0.3, -0.4])
    loss = total_loss({"": SFT.loss(SftRule())}, samples, {LOGPROBS: logprobs}, count(samples))
    assert loss.item() == pytest.approx(0.78, abs=1e-5)


def test_every_token_gains_by_the_same_step() -> None:
    batch = batch_of(G1, weights=[2.0, 1.0])
    assert slopes(sft(batch, TOKEN_MEAN), batch) == pytest.approx([-0.4, -0.4, -0.2, -0.2, -0.2])  # -weight / 5


def test_weights_multiply_and_do_not_renormalize() -> None:
    # (2 * 3 + 0.5 * 0.9) / 5
    assert sft(batch_of(G1, weights=[2.0, 0.5]), TOKEN_MEAN).item() == pytest.approx(1.29)


def test_dft_counts_a_token_by_its_probability() -> None:
    # sum of -p log p over the tokens, over 5
    expected = -sum(math.exp(x) * x for r in G1 for x in r) / 5
    batch = batch_of(G1)
    loss = dft(batch, TOKEN_MEAN)
    assert loss.item() == pytest.approx(expected, abs=1e-5)
    # the probability takes no gradient: -p / 5, and not -(1 + log p) p / 5
    assert slopes(loss, batch) == pytest.approx([-math.exp(x) / 5 for r in G1 for x in r], abs=1e-6)


def test_dft_at_the_ends() -> None:
    batch = batch_of([[0.0, -200.0]])
    loss = dft(batch, TOKEN_MEAN)
    assert loss.item() == pytest.approx(0, abs=1e-6)  # sure, or thought impossible: nothing to pay
    assert slopes(loss, batch) == pytest.approx([-0.5, 0.0], abs=1e-6)


def test_gradient_agrees_with_finite_differences() -> None:
    for aggregation in Aggregation:
        assert agrees_with_finite_differences(lambda b, a=aggregation: sft(b, a, 3.0), batch_of(G1, weights=[2, 0.5]))


def test_rewards_as_weights_keep_what_succeeded() -> None:
    good, bad, soft = row("g", (1, 2, 3), reward=1.0), row("b", (1, 2, 4), reward=0.0), row("s", (1, 2, 5), reward=0.25)
    rule = SftRule()
    kept = RFT.annotate([good, bad, replace(soft, weight=2.0)], rule)
    assert [(sample.id, sample.weight) for sample in kept] == [("g", 1.0), ("s", 0.5)]
    # a failure is left out, not counted as zero: the loss is that of the success alone
    assert count(RFT.annotate([good, bad], rule)) == count([good])
    with pytest.raises(TooLittleDataError, match="reward above 0"):
        RFT.annotate([bad], rule)
    with pytest.raises(RefusedError, match="no feedback is not a bad reward"):
        RFT.annotate([row("n", (1, 2, 3))], rule)
    assert SFT.annotate([bad], rule) == [bad]  # a demonstration needs no reward


def test_the_rule_names_its_loss_and_its_aggregation() -> None:
    assert SFT.loss(SftRule()).settings["aggregation"] == TOKEN_MEAN
    assert SFT.loss(SftRule()).name == "sft"
    assert SFT.loss(SftRule(Aggregation.CONSTANT, 8, certainty_weighted=True)).name == "dft"
    assert not SFT.anchored


def test_trap_a_an_empty_mask_is_an_error_and_no_zero() -> None:
    empty = replace(row("s", (1, 2, 3)), loss_mask=(False,) * 3)
    with pytest.raises(RefusedError, match="has loss tokens"):
        SFT.annotate([empty], SftRule())
    with pytest.raises(InputError, match="No token"):
        count([empty])


def test_trap_b_the_end_of_turn_is_learned(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model")
    handbook = tmp_path / "handbook.jsonl"
    handbook.write_text('{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]}\n')
    [sample] = read_written(handbook, Material.DEMONSTRATIONS, Renderer.from_folder(folder))
    learned = [token for token, used in zip(sample.token_ids, sample.loss_mask, strict=True) if used]
    assert learned[-1] == 2  # <|im_end|>
    assert len(learned) > 1


def test_trap_c_the_mean_is_that_of_the_whole_batch() -> None:
    """Shares of micro-batches add up to 0.78; the mean of their means would be 0.9."""
    samples = [row("a", (1, 2, 3, 4)), row("b", (1, 2, 3, 4, 5))]
    totals, terms = count(samples), {"": SFT.loss(SftRule())}
    shares = [
        total_loss(terms, [one], {LOGPROBS: torch.tensor(values)}, totals).item()
        for one, values in zip(samples, G1, strict=True)
    ]
    assert sum(shares) == pytest.approx(0.78)
    alone = [
        total_loss(terms, [one], {LOGPROBS: torch.tensor(values)}, count([one])).item()
        for one, values in zip(samples, G1, strict=True)
    ]
    assert sum(alone) / 2 == pytest.approx(0.9)


def test_trap_e_what_a_tool_said_is_not_learned() -> None:
    tool = replace(row("s", (1, 2, 3, 4)), completion_mask=(False, False, True, False))
    with pytest.raises(RefusedError, match="only sampled tokens"):
        SFT.annotate([tool], SftRule())
