"""REBEL: the difference of two replies' log-ratios is regressed on the difference of their rewards.

Implements: Gao et al., arXiv:2404.16767.
Departs: nothing; the previous iterate is the policy that a window starts from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nightschool.objectives.legality import require_pairs
from nightschool.objectives.loss import Loss, Material, Objective
from nightschool.objectives.regression import require_judged, require_temperature, reward_of
from nightschool.types import Sample


@dataclass(frozen=True, slots=True)
class RebelRule:
    """`eta`: step size; 1 / eta is the temperature in units of reward (unverified). `calibrated`: rewards between 0
    and 1 are calibrated probabilities of success."""

    eta: float = 1.0
    calibrated: bool = False


def annotate(samples: Sequence[Sample], rule: RebelRule) -> list[Sample]:
    """Give each sample the `advantage` over its pair's mean; a pair is two replies to one request, one `group_id`.

    The request's value cancels, whatever it is.

    Raises:
        RefusedError: a row has no partner or more than one, the two answer different requests, or a requirement of
            `objectives.legality` is broken.
    """
    require_judged(samples, rule.calibrated)
    require_temperature(rule.eta)
    pairs = require_pairs(samples)
    means = {name: (reward_of(first) + reward_of(second)) / 2 for name, (first, second) in pairs.items()}
    return [_annotated(sample, means[str(sample.group_id)]) for sample in samples]


def loss(rule: RebelRule) -> Loss:
    return Loss("rebel", {"eta": rule.eta})


REBEL = Objective("rebel", RebelRule, annotate, loss, anchored=True, material=Material.GROUPS)


def _annotated(sample: Sample, mean: float) -> Sample:
    notes = {**sample.annotations, "value": mean, "advantage": reward_of(sample) - mean}
    return replace(sample, annotations=notes)
