"""TBRM: one regression of a trajectory, with the policy's own logits for its value. No model beside it, no groups.

With beta * logits for action values, the Bellman residuals of all sampled tokens add up to one: beta LR + V - r, V
being beta times the log-sum-exp of the logits at the first of them.

Implements: TBRM, arXiv:2505.15311 (abstract read, formula reconstructed by telescoping; unverified).
Departs: divided by 2 * beta, as every regression here. Tokens that somebody else wrote take no part. A language model's
    logits have an offset of their own, which no reward knows of: until it is learned, all replies lose or gain alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nightschool.objectives.legality import refused
from nightschool.objectives.loss import LOGPROBS, NORMALIZERS, Loss, Objective
from nightschool.objectives.regression import require_judged, require_temperature, reward_of
from nightschool.types import Sample


@dataclass(frozen=True, slots=True)
class TbrmRule:
    """`beta`: the temperature; a small one also keeps the offset small beside rewards. `calibrated`: rewards between 0
    and 1 are calibrated probabilities of success."""

    beta: float = 0.01
    calibrated: bool = False


def annotate(samples: Sequence[Sample], rule: TbrmRule) -> list[Sample]:
    """Give each sample its `reward` as a note.

    Raises:
        RefusedError: a row is a part of a session, or a requirement of `objectives.legality` is broken.
    """
    require_judged(samples, rule.calibrated)
    require_temperature(rule.beta)
    for sample in samples:
        if sample.annotations.get("num_rows", 1.0) != 1.0:
            raise refused("a trajectory is one row, from where its value is taken", f"sample {sample.id} is a part")
    return [replace(s, annotations={**s.annotations, "reward": reward_of(s)}) for s in samples]


def loss(rule: TbrmRule) -> Loss:
    return Loss("bellman", {"beta": rule.beta}, outputs=frozenset({LOGPROBS, NORMALIZERS}))


TBRM = Objective("tbrm", TbrmRule, annotate, loss, anchored=True)
