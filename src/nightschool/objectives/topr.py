"""TOPR: learn from good replies as they are, and from bad ones as far as the policy still gives them.

A success weighs 1 wherever it came from. A failure weighs min(1, pi / pi_b): once the policy has left it, its gradient
fades, where plain off-policy REINFORCE would push it down forever.

Implements: Le Roux et al., arXiv:2503.14286 (an excerpt of the paper was read; unverified), ratios of whole sequences.
Departs: rewards in [0, 1] are told as 2r - 1, which is what a soft one means on average. Ratios of single tokens, as
    one popular implementation takes them, are not offered: they are another algorithm. A session told in k rows has k
    ratios, one of each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nightschool.objectives.legality import require_behavior
from nightschool.objectives.loss import Aggregation, Loss, Objective
from nightschool.objectives.regression import require_judged, reward_of
from nightschool.types import Sample


@dataclass(frozen=True, slots=True)
class ToprRule:
    """`aggregation`: the published one divides a reply's loss by its length. `max_length`: of `Aggregation.CONSTANT`.
    `calibrated`: rewards between 0 and 1 are calibrated probabilities of success."""

    aggregation: Aggregation = Aggregation.SEQUENCE_MEAN
    max_length: float | None = None
    calibrated: bool = False


def annotate(samples: Sequence[Sample], rule: ToprRule) -> list[Sample]:
    """Give each sample the `advantage` 2r - 1. It works best where 10 to 20 % of the rows are successes (unverified).

    Raises:
        RefusedError: the engine's log-probabilities are missing, or a requirement of `objectives.legality` is broken.
    """
    require_judged(samples, rule.calibrated)
    require_behavior(samples)
    return [replace(s, annotations={**s.annotations, "advantage": 2 * reward_of(s) - 1}) for s in samples]


def loss(rule: ToprRule) -> Loss:
    return Loss("topr", {"aggregation": rule.aggregation, "max_length": rule.max_length})


TOPR = Objective("topr", ToprRule, annotate, loss, weighs_behavior=True)
