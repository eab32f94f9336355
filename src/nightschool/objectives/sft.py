"""Supervised fine-tuning on demonstrations: imitate the assistant's tokens, and nobody else's."""

from __future__ import annotations

from collections.abc import Sequence

from nightschool.objectives.legality import require_tokens
from nightschool.objectives.loss import Loss
from nightschool.types import Sample

LOSS = Loss("sft")


def annotate(samples: Sequence[Sample]) -> list[Sample]:
    """Check the masks. The loss is the weighted mean over all loss tokens of a batch, so long replies count more.

    Raises:
        RefusedError: a mask is empty, or trains what the assistant did not say.
    """
    require_tokens(samples)
    return list(samples)
