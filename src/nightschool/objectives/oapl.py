"""OAPL: regress the policy's log-ratio to its anchor on the advantage, off-policy, without importance weights.

Both forms name the same loss, weight * (beta * LR - A)^2 / (2 * beta); they differ in the value V of
A = r - V. The group form compares rollouts of one task; the single form, for one-off production
sessions, takes V from a calibrated success model, on the pessimistic side.

Implements: Ritter et al., arXiv:2602.19362, Eq. 2 and 3.
Departs: one temperature and V = min(p_lo, p_hat - margin * beta) in the single form; no session is
    replayed, and an overestimated value would drain probability from every reply in the log. A session told
    in k rows regresses each row's log-ratio on 1/k of what the whole asks for: by Jensen's inequality the
    sum bounds the whole session's loss from above, and both have one gradient at the anchor.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nightschool.errors import RefusedError
from nightschool.objectives.legality import (
    require_no_anchor,
    require_rewards,
    require_tokens,
    require_whole_trajectories,
)
from nightschool.objectives.loss import Loss
from nightschool.types import Sample

LOSS = Loss("squared_log_ratio")


@dataclass(frozen=True, slots=True)
class SingleRule:
    """The single form's settings.

    `beta`: temperature; 0.5 for an agent's first study, 0.25 later. `margin`: pessimism c in units of
    beta. `floor`: nats; a failure whose log-ratio fell below it is pushed no further down. `calibrated`:
    rewards between 0 and 1 are calibrated probabilities of success.
    """

    beta: float = 0.25
    margin: float = 1.0
    floor: float = -3.0
    calibrated: bool = False


def value(p_hat: float, p_lo: float, beta: float, margin: float) -> float:
    """The anchor's pessimistic value at one request.

    Edge: never below 0, the lowest reward: a failure is never reinforced, however hard the request.
    """
    return max(0.0, min(p_lo, p_hat - margin * beta))


def annotate_singles(
    samples: Sequence[Sample], estimates: Sequence[tuple[float, float]], rule: SingleRule
) -> list[Sample]:
    """Give each sample its `value`, `advantage`, `beta` and `floor`.

    `estimates` are (p_hat, p_lo) of the anchor's success on each sample's request; no sample may have
    informed its own (cross-fit them).

    Raises:
        RefusedError: a requirement of `objectives.legality` is broken.
    """
    require_tokens(samples)
    require_whole_trajectories(samples)
    require_rewards(samples, rule.calibrated)
    require_no_anchor(samples)
    return [
        _annotated(sample, value(p_hat, p_lo, rule.beta, rule.margin), rule.beta, rule.floor)
        for sample, (p_hat, p_lo) in zip(samples, estimates, strict=True)
    ]


def annotate_rehearsal(samples: Sequence[Sample], rule: SingleRule, weight: float) -> list[Sample]:
    """Give samples of general conversation an advantage of zero: the loss pulls their log-ratio back to zero.

    What an agent hears about its own trade says nothing of everything else it knows; a low-rank update moves
    that along, all the same. Rehearsed beside the feedback, it stays where the anchor had it.
    """
    notes = {"value": 0.0, "advantage": 0.0, "beta": rule.beta, "floor": rule.floor}
    return [replace(sample, weight=weight, annotations={**sample.annotations, **notes}) for sample in samples]


def log_mean_exp(rewards: Sequence[float], beta: float) -> float:
    """beta * log(mean(exp(r / beta))), the value a group of rollouts implies at temperature beta."""
    top = max(rewards)
    return top + beta * math.log(sum(math.exp((r - top) / beta) for r in rewards) / len(rewards))


def annotate_groups(samples: Sequence[Sample], anchor: str, beta1: float = 1.0, beta2: float = 0.05) -> list[Sample]:
    """Give each sample its group's value at `beta1` and the loss temperature `beta2`.

    `anchor` is the policy version the log-ratios will be measured against; the group's mean estimates
    that version's value only if all of the group was sampled by it.

    Raises:
        RefusedError: a group of one, a sample of another version than the anchor, no group id, or a
            requirement of `objectives.legality` is broken.
    """
    require_tokens(samples)
    require_whole_trajectories(samples)
    require_rewards(samples, calibrated=True)
    require_no_anchor(samples)
    groups: dict[str, list[float]] = defaultdict(list)
    for sample in samples:
        if sample.group_id is None:
            raise _refused("the group form compares rollouts of one task", f"Sample {sample.id} is in no group.")
        if sample.policy_version != anchor:
            raise _refused(
                "one anchor per buffer",
                f"Sample {sample.id} was drawn by {sample.policy_version}, the anchor is {anchor}.",
            )
        groups[sample.group_id].append(_reward(sample))
    lonely = [name for name, rewards in groups.items() if len(rewards) < 2]
    if lonely:
        raise _refused("a group of one has no group value", f"Group {lonely[0]} holds one rollout.")
    values = {name: log_mean_exp(rewards, beta1) for name, rewards in groups.items()}
    return [_annotated(sample, values[str(sample.group_id)], beta2, None) for sample in samples]


def _annotated(sample: Sample, baseline: float, beta: float, floor: float | None) -> Sample:
    """k * (beta * LR - A / k)^2 / (2 * beta), summed over k rows, is the loss at k * beta with the whole A."""
    notes = dict(sample.annotations)
    num_rows = notes.pop("num_rows", 1.0)
    notes |= {"value": baseline, "advantage": _reward(sample) - baseline, "beta": beta * num_rows}
    return replace(sample, annotations=notes if floor is None else {**notes, "floor": floor / num_rows})


def _reward(sample: Sample) -> float:
    assert sample.reward is not None, "checked by require_rewards"
    return sample.reward


def _refused(rule: str, why: str) -> RefusedError:
    return RefusedError(f"The run is refused: {rule}.", why, "Use the single form, or collect groups.")
