"""QRPO: regress the policy's log-ratio on the quantile of a reward, whose partition function is known.

Implements: Matrenok et al., arXiv:2507.08068 (formula reconstructed from the abstract's construction, unverified).
Departs: divided by 2 * beta, as every regression here. The reference's rewards are those of rows of the same dataset;
    a row never ranks against itself.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nightschool.errors import RefusedError
from nightschool.objectives.legality import (
    require_no_anchor,
    require_one_version,
    require_tokens,
    require_whole_trajectories,
)
from nightschool.objectives.loss import Loss, Material, Objective
from nightschool.objectives.regression import SQUARED, require_temperature, reward_of
from nightschool.types import Sample


@dataclass(frozen=True, slots=True)
class QrpoRule:
    """`beta`: temperature in units of the quantile, which runs from 0 to 1. `reference`: the policy version whose
    replies to a request (one `group_id`) a reward is ranked among, at least `min_references` of them; unnamed, the
    replies are all by one version."""

    beta: float = 0.1
    reference: str | None = None
    min_references: int = 4


def log_partition(beta: float) -> float:
    """log Z of Z = beta (e^(1/beta) - 1): the mean of exp(R / beta) for R uniform on [0, 1]."""
    return math.log(beta) + 1 / beta + math.log1p(-math.exp(-1 / beta))


def quantile(reward: float, references: Sequence[float]) -> float:
    """The share of the reference's rewards that do not exceed this one."""
    return sum(other <= reward for other in references) / len(references)


def annotate(samples: Sequence[Sample], rule: QrpoRule) -> list[Sample]:
    """Give each sample its `quantile`, its `value` beta * log Z, the `advantage` between the two, and `beta`.

    Raises:
        RefusedError: a reward is missing, rewards are not continuous (their quantiles would not be uniform), a
            request has too few replies of the reference, or a requirement of `objectives.legality` is broken.
    """
    require_tokens(samples)
    require_whole_trajectories(samples)
    require_no_anchor(samples)
    require_temperature(rule.beta)
    if rule.reference is None:
        require_one_version(samples)
    groups: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.reward is None or not math.isfinite(sample.reward):
            raise _refused("no feedback is not a bad reward", f"Sample {sample.id} has the reward {sample.reward}.")
        groups[sample.group_id or sample.id].append(sample)
    rewards = {sample.reward for sample in samples}
    if rewards <= {0.0, 1.0} or 2 * len(rewards) <= len(samples):
        raise _refused("rewards are continuous", f"{len(samples)} rows hold {len(rewards)} different rewards.")
    worth = rule.beta * log_partition(rule.beta)
    return [_annotated(sample, groups[sample.group_id or sample.id], rule, worth) for sample in samples]


def loss(rule: QrpoRule) -> Loss:  # the rule is in the annotations
    return SQUARED


QRPO = Objective("qrpo", QrpoRule, annotate, loss, anchored=True, material=Material.GROUPS, one_version=True)


def _annotated(sample: Sample, group: Sequence[Sample], rule: QrpoRule, worth: float) -> Sample:
    others = [other for other in group if other is not sample and rule.reference in (None, other.policy_version)]
    if len(others) < rule.min_references:
        raise _refused(
            f"a reward is ranked among {rule.min_references} of the reference's",
            f"Sample {sample.id} has {len(others)} beside it.",
        )
    rank = quantile(reward_of(sample), [reward_of(other) for other in others])
    notes = {"quantile": rank, "value": worth, "advantage": rank - worth, "beta": rule.beta}
    return replace(sample, annotations={**sample.annotations, **notes})


def _refused(rule: str, why: str) -> RefusedError:
    return RefusedError(f"The run is refused: {rule}.", why, "Use DRO or OAPL, which take success and failure.")
