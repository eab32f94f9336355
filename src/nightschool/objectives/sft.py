"""Supervised fine-tuning: imitate the assistant's tokens, and nobody else's; or those of its replies that were good.

Implements: negative log-likelihood. Rewards as weights are filtered behavior cloning; DFT is Wu et al.,
    arXiv:2508.05629.
Departs: a reply of reward 0 is left out of every mean, where a factor of zero would let it count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nightschool.errors import TooLittleDataError
from nightschool.objectives.legality import require_rewards, require_tokens
from nightschool.objectives.loss import Aggregation, Loss, Material, Objective
from nightschool.types import Sample


@dataclass(frozen=True, slots=True)
class SftRule:
    """`aggregation`: the token mean lets long replies count more, the mean of sequence means counts every
    conversation alike. `max_length`: the constant of `Aggregation.CONSTANT`. `certainty_weighted`: DFT, a token
    counts as much as the policy already believes in it."""

    aggregation: Aggregation = Aggregation.TOKEN_MEAN
    max_length: float | None = None
    certainty_weighted: bool = False


def annotate(samples: Sequence[Sample], rule: SftRule) -> list[Sample]:
    """Check the masks.

    Raises:
        RefusedError: a mask is empty, or trains what the assistant did not say.
    """
    require_tokens(samples)
    return list(samples)


def annotate_rewarded(samples: Sequence[Sample], rule: SftRule) -> list[Sample]:
    """Check the masks, and let a reply count as much as its reward: rewards of 0 and 1 keep what succeeded.

    Raises:
        RefusedError: a mask or a reward is missing or illegal.
        TooLittleDataError: no reply is worth imitating.
    """
    require_tokens(samples)
    require_rewards(samples, calibrated=True)
    weighted = [replace(sample, weight=sample.weight * (sample.reward or 0.0)) for sample in samples]
    kept = [sample for sample in weighted if sample.weight > 0]
    if not kept:
        raise TooLittleDataError("There is nothing to imitate.", "No reply has a reward above 0.", "nightschool status")
    return kept


def loss(rule: SftRule) -> Loss:
    settings = {"aggregation": rule.aggregation, "max_length": rule.max_length}
    return Loss("dft" if rule.certainty_weighted else "sft", settings)


SFT = Objective("sft", SftRule, annotate, loss, material=Material.DEMONSTRATIONS)
RFT = Objective("rft", SftRule, annotate_rewarded, loss, material=Material.TEXTS)
