"""Supervised fine-tuning on demonstrations: imitate the assistant's tokens, and nobody else's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nightschool.objectives.legality import require_tokens
from nightschool.objectives.loss import Aggregation, Loss, Material, Objective
from nightschool.types import Sample


@dataclass(frozen=True, slots=True)
class SftRule:
    """`aggregation`: by default the mean over all loss tokens of a batch, so long replies count more."""

    aggregation: str = Aggregation.TOKEN_MEAN.value


def annotate(samples: Sequence[Sample], _rule: SftRule | None = None) -> list[Sample]:
    """Check the masks.

    Raises:
        RefusedError: a mask is empty, or trains what the assistant did not say.
    """
    require_tokens(samples)
    return list(samples)


def loss(rule: SftRule) -> Loss:
    return Loss("sft", {"aggregation": Aggregation(rule.aggregation)})


SFT = Objective("sft", SftRule, annotate, loss, material=Material.DEMONSTRATIONS)
