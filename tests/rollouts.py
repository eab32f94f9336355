"""Rollouts made by hand, annotated by an objective and priced by the loss it names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nightschool.objectives.loss import LOGPROBS, Objective
from nightschool.training.losses.mixing import count, total_loss
from nightschool.types import Sample

Values = Sequence[Sequence[float]]
PROMPT = (5, 6)


def rollout(reward: float | None, length: int = 1, group: str | None = "g", name: str = "s", **notes: float) -> Sample:
    """A prompt of two tokens and `length` sampled ones, drawn by version v1."""
    mask = (False,) * len(PROMPT) + (True,) * length
    ids = (*PROMPT, *range(10, 10 + length))
    return Sample(name, ids, mask, mask, reward=reward, policy_version="v1", group_id=group, annotations=dict(notes))


def drawn(sample: Sample, behavior: Sequence[float]) -> Sample:
    """The sample with the engine's own log-probabilities."""
    return replace(sample, token_annotations={"behavior_logprobs": (None, None, *behavior)})


def priced(
    objective: Objective,
    rule: Any,
    samples: Sequence[Sample],
    policy: Values,
    reference: Values | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """The loss of samples as annotated, and the log-probabilities it was computed from, with their gradient."""
    found = objective.annotate(samples, rule)
    if reference is not None:
        found = [
            replace(sample, reference_logprobs=(None, None, *row)) for sample, row in zip(found, reference, strict=True)
        ]
    logprobs = torch.tensor([x for row in policy for x in row], dtype=dtype, requires_grad=True)
    loss = total_loss({"": objective.loss(rule)}, found, {LOGPROBS: logprobs}, count(found))
    loss.backward()
    return loss, logprobs


def slopes(logprobs: Tensor) -> list[float]:
    assert logprobs.grad is not None
    return logprobs.grad.tolist()
