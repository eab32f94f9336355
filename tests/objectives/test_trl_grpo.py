"""GRPO's family against TRL's own loss code, on the same tensors.

TRL's `GRPOTrainer._compute_loss` runs whole; only what would ask a model for log-probabilities hands ours over.

Known differences, all of them ours by decision:
* A row without loss tokens (TRL: `mask_truncated_completions`) counts in TRL's sequence means, and in none of ours.
* TRL's `dapo` and `cispo` divide by the tokens of a generation batch, ours by those of the step's batch.
* TRL cuts the ratio itself at `delta` before it clips; our dual clip bounds the loss of bad tokens alone.
* TRL's weights of `vespo` reach down to e^-18.4, ours to e^-20.
* TRL's deviation adds 1e-4, verl's 1e-6; here `epsilon` says which. TRL trains no group of one; here it is refused.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ratios import ADVANTAGES, DRIFT, POLICY, STALENESS, batch_of, golden_rows

from nightschool.objectives.advantages import Baseline, Scale, compared
from nightschool.objectives.clipping import BEHAVIOR, Clip, Penalty, Ratio, Surrogate
from nightschool.objectives.loss import Aggregation
from nightschool.objectives.off_policy import CORRECTIONS, Correction, Weighing, weigh
from nightschool.training.losses.clipped import clipped

TOKENS, SEQUENCES, CONSTANT = Aggregation.TOKEN_MEAN, Aggregation.SEQUENCE_MEAN, Aggregation.CONSTANT
WIDTH = max(len(row) for row in POLICY)


class Alone:
    """An accelerator of one process."""

    num_processes = 1

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def reduce(self, x: torch.Tensor, reduction: str) -> torch.Tensor:
        return x


def padded(rows: Any) -> torch.Tensor:
    return torch.tensor([[*row, *[0.0] * (WIDTH - len(row))] for row in rows], dtype=torch.float64)


def theirs(loss_type: str, ratios: torch.Tensor | None = None, **changed: Any) -> tuple[float, list[float]]:
    """TRL's loss of golden G5, and its gradient with respect to the log-probabilities of loss tokens."""
    from trl import GRPOTrainer

    policy = padded(POLICY).requires_grad_()
    mask = padded([[1.0] * len(row) for row in POLICY])
    anchor = (padded(POLICY) - padded(DRIFT)) * mask
    settings = {"importance_sampling_level": "token", "epsilon_low": 0.2, "epsilon_high": 0.2, "beta": 0.0,
                "off_policy_mask_threshold": None, **changed}  # fmt: skip
    args = SimpleNamespace(
        delta=None, use_bias_correction_kl=settings.pop("corrected", False), sapo_temperature_pos=1.0,
        sapo_temperature_neg=1.05, vespo_k_pos=2.0, vespo_lambda_pos=3.0, vespo_k_neg=3.0, vespo_lambda_neg=2.0,
    )  # fmt: skip
    trainer = SimpleNamespace(
        loss_type=loss_type, args=args, accelerator=Alone(), model=SimpleNamespace(training=True),
        top_entropy_quantile=1.0, aux_loss_enabled=False, _entropy_bonus_enabled=False, max_completion_length=8,
        use_vllm=ratios is not None, vllm_importance_sampling_correction=True, current_gradient_accumulation_steps=1,
        _metrics={"train": defaultdict(list)}, get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
        _get_per_token_logps_and_entropies=lambda *_, **__: (policy, torch.zeros_like(mask), None), **settings,
    )  # fmt: skip
    trainer.args.steps_per_generation = 1
    ids = torch.zeros(2, 1, dtype=torch.long)
    inputs = {
        "prompt_ids": ids, "prompt_mask": ids, "completion_ids": mask.long(), "completion_mask": mask,
        "advantages": torch.tensor(ADVANTAGES, dtype=torch.float64), "old_per_token_logps": anchor,
        "ref_per_token_logps": anchor, "sampling_per_token_logps": anchor - padded(STALENESS),
        "importance_sampling_ratio": ratios, "num_items_in_batch": mask.sum(),
    }  # fmt: skip
    if ratios is None:
        del inputs["importance_sampling_ratio"]
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)  # type: ignore[arg-type]
    (gradient,) = torch.autograd.grad(loss, policy)
    return loss.item(), gradient[mask.bool()].tolist()


def ours(
    clip: Clip, aggregation: Aggregation, correction: Correction | None = None, **more: Any
) -> tuple[float, list[float]]:
    rows = golden_rows() if correction is None else weigh(golden_rows(), correction).samples
    batch = batch_of(rows, POLICY, torch.float64)
    weighted = correction is not None
    loss = clipped(batch, clip, weighted=weighted, aggregation=aggregation, max_length=8, **more)
    (gradient,) = torch.autograd.grad(loss, batch.logprobs)
    return loss.item(), gradient.tolist()


def agree(found: tuple[float, list[float]], expected: tuple[float, list[float]]) -> None:
    assert found[0] == pytest.approx(expected[0], abs=1e-6)
    assert found[1] == pytest.approx(expected[1], abs=1e-6)


@pytest.mark.parametrize(
    ("loss_type", "aggregation"),
    [("grpo", SEQUENCES), ("bnpo", TOKENS), ("dapo", TOKENS), ("dr_grpo", CONSTANT)],
)
@pytest.mark.parametrize("high", [0.2, 0.28])
def test_clipped_losses(loss_type: str, aggregation: Aggregation, high: float) -> None:
    agree(ours(Clip(0.2, high), aggregation), theirs(loss_type, epsilon_high=high))


def test_sequence_ratios() -> None:
    found = ours(Clip(3e-4, 4e-4, Ratio.SEQUENCE), SEQUENCES)
    agree(found, theirs("grpo", importance_sampling_level="sequence", epsilon_low=3e-4, epsilon_high=4e-4))


def test_a_cap() -> None:
    """TRL's `epsilon_high` is the cap itself here, as ours is."""
    agree(ours(Clip(surrogate=Surrogate.CAPPED, cap=1.28), TOKENS), theirs("cispo", epsilon_high=1.28))


def test_a_soft_clip() -> None:
    agree(ours(Clip(surrogate=Surrogate.SOFT), SEQUENCES), theirs("sapo"))


def test_gamma_weights() -> None:
    """TRL multiplies policy / anchor by anchor / behavior; ours is policy / behavior at once. Its weight of a padded
    token is 1 only where its own masking made it so: padding is cut away there."""
    w = torch.exp(padded(STALENESS))
    agree(ours(Clip(surrogate=Surrogate.GAMMA, against=BEHAVIOR), TOKENS), theirs("vespo", w))
    agree(ours(Clip(surrogate=Surrogate.GAMMA), TOKENS), theirs("vespo"))


@pytest.mark.parametrize("corrected", [False, True])
def test_penalties(corrected: bool) -> None:
    found = ours(Clip(), SEQUENCES, penalty=Penalty(0.3, corrected=corrected))
    agree(found, theirs("grpo", beta=0.3, corrected=corrected))


@pytest.mark.parametrize(("limit", "spent"), [(0.05, False), (-0.05, True)])
def test_the_mask_of_far_failures(limit: float, spent: bool) -> None:
    """The mean gap of y2 is 0 (see the golden numbers): below one limit, above the other."""
    found = ours(Clip(divergence=limit), TOKENS)
    agree(found, theirs("dapo", off_policy_mask_threshold=limit))
    assert any(found[1][2:]) != spent


W = torch.exp(padded(STALENESS))
W_SEQUENCE = torch.exp(padded(STALENESS).sum(1, keepdim=True))


@pytest.mark.parametrize(
    ("correction", "ratios"),
    [
        (CORRECTIONS["tis-token"], W.clamp(0.0, 2.0)),
        (CORRECTIONS["icepop"], torch.where((W < 0.5) | (W > 5), 0.0, W)),
        (CORRECTIONS["mis-token"], torch.where((W < 0.5) | (W > 2), 0.0, W)),
        (CORRECTIONS["mis-sequence"], torch.where(W_SEQUENCE > 3, 0.0, W_SEQUENCE)),
        (
            Correction(Weighing.MASK_SEQUENCE, 0.8, 3.0),
            torch.where((W_SEQUENCE < 0.8) | (W_SEQUENCE > 3), 0.0, W_SEQUENCE),
        ),
        (Correction(Weighing.TRUNCATE_SEQUENCE, high=1.0), W_SEQUENCE.clamp(0.0, 1.0)),
    ],
)
@pytest.mark.parametrize(("loss_type", "aggregation"), [("grpo", SEQUENCES), ("dapo", TOKENS), ("cispo", TOKENS)])
def test_importance_weights(
    correction: Correction, ratios: torch.Tensor, loss_type: str, aggregation: Aggregation
) -> None:
    clip = Clip(surrogate=Surrogate.CAPPED, cap=1.28) if loss_type == "cispo" else Clip()
    high = 1.28 if loss_type == "cispo" else 0.2
    agree(ours(clip, aggregation, correction), theirs(loss_type, ratios, epsilon_high=high))


@pytest.mark.parametrize("scale", ["group", "none", "batch"])
def test_advantages(scale: str) -> None:
    """TRL's own three lines on tensors (ddof 1, epsilon 1e-4), told again: they stand inside a method that samples."""
    rewards = torch.tensor([[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.3]])
    mean = rewards.mean(1, keepdim=True)
    spread = {"group": rewards.std(1, keepdim=True), "batch": rewards.std(), "none": None}[scale]
    expected = rewards - mean if spread is None else (rewards - mean) / (spread + 1e-4)
    found = compared(rewards.tolist(), Baseline.MEAN, Scale(scale), 1, 1e-4)
    torch.testing.assert_close(torch.tensor(found), expected)
