"""Hindsight: what the model would have said had it heard what people said afterwards.

The same network, frozen for a window, scores the tokens of a reply once more behind a prompt that tells the feedback;
the policy, which never sees it, is drawn there. One conversation suffices, and it is not replayed.

Implements: Kleine Buening et al., arXiv:2603.12273 (offline form); Huebotter et al., arXiv:2601.20802 (the mask).
Departs: a regression instead of the surrogate (one gradient, a value that says something), a frozen teacher, and a
    clip on the log-ratio. No rows without feedback: they count in no denominator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nightschool.errors import RefusedError
from nightschool.objectives.legality import require_no_anchor, require_tokens
from nightschool.objectives.loss import Aggregation, Loss, Material, Objective
from nightschool.types import Sample


@dataclass(frozen=True, slots=True)
class HindsightRule:
    """`clip`: nats; a token is drawn no harder than by a teacher so far away. `aggregation`: by default each reply
    counts alike, however long."""

    clip: float = 5.0
    aggregation: Aggregation = Aggregation.SEQUENCE_MEAN


def annotate(samples: Sequence[Sample], rule: HindsightRule) -> list[Sample]:
    """Check the rows: each comes with a teacher's view of itself (`Course.teachers`), scored when a window begins.

    Raises:
        RefusedError: a clip that is not above zero, or a requirement of `objectives.legality` is broken.
    """
    require_tokens(samples)
    require_no_anchor(samples)
    if rule.clip <= 0:
        raise RefusedError("The run is refused: a clip is above zero.", f"It is {rule.clip}.", "Set clip.")
    return list(samples)


def loss(rule: HindsightRule) -> Loss:
    return Loss("hindsight", {"clip": rule.clip, "aggregation": rule.aggregation})


HINDSIGHT = Objective("hindsight", HindsightRule, annotate, loss, anchored=True, material=Material.WORDS)
