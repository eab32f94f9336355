"""VarGrad, as in trajectory balance with asynchrony: the variance of what a group says of its partition function.

Each rollout implies log Z = r / beta - LR. Where the policy is the optimum they agree; the loss is their variance
within a group. No value is estimated: the group's mean over the policy's own log-ratios takes its place.

Implements: Bartoldson et al., arXiv:2503.18929 (unverified); Richter et al., arXiv:2010.10436 (the estimator).
Departs: multiplied by beta / 2, so that its gradient at the anchor is that of a policy gradient; groups only, no
    mean over the batch, which would be one value for all requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nightschool.objectives.legality import require_groups, require_one_version
from nightschool.objectives.loss import Loss, Material, Objective
from nightschool.objectives.regression import require_judged, require_temperature, reward_of
from nightschool.types import Sample


@dataclass(frozen=True, slots=True)
class VarGradRule:
    """`beta`: the temperature."""

    beta: float = 0.1


def annotate(samples: Sequence[Sample], rule: VarGradRule) -> list[Sample]:
    """Give each sample its `reward` as a note.

    Raises:
        RefusedError: a group of one, several versions in one buffer, no group, or a requirement of
            `objectives.legality` is broken.
    """
    require_judged(samples, calibrated=True)
    require_temperature(rule.beta)
    require_groups(samples)
    require_one_version(samples)
    return [replace(s, annotations={**s.annotations, "reward": reward_of(s)}) for s in samples]


def loss(rule: VarGradRule) -> Loss:
    return Loss("group_variance", {"beta": rule.beta})


VAR_GRAD = Objective("var_grad", VarGradRule, annotate, loss, anchored=True, material=Material.GROUPS, one_version=True)
