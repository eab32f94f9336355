"""Rollouts before they teach: which are compared, what their rewards are by then, where a cut one ends. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nightschool.objectives.legality import refused, require_groups, require_no_anchor, require_tokens
from nightschool.objectives.off_policy import behavior_kl, chosen
from nightschool.types import Sample

FAILED, TRUNCATED = "infrastructure_failure", "truncated"


@dataclass(frozen=True, slots=True)
class Overlong:
    """`leave_out`: rows annotated `truncated` train nothing, while their reward counts in the group. Where `cache` is
    above 0, a reply's reward loses 0 at `max_length` - `cache` tokens, rising to 1 at `max_length` and beyond."""

    leave_out: bool = False
    max_length: int = 0
    cache: int = 0

    def leaves_out(self, sample: Sample) -> bool:
        return self.leave_out and bool(sample.annotations.get(TRUNCATED))


ANY_LENGTH = Overlong()


def comparable(samples: Sequence[Sample]) -> list[list[Sample]]:
    """The groups, without rollouts that failed for no fault of the policy, and without groups that these leave alone.

    Raises: as `legality.require_groups`, of what was drawn.
    """
    drawn = require_groups(samples).values()
    groups = [[sample for sample in members if not sample.annotations.get(FAILED)] for members in drawn]
    return [members for members in groups if len(members) > 1]


def require_numbers(samples: Sequence[Sample]) -> None:
    """Rewards may lie anywhere, but each is there. Raises: RefusedError."""
    for sample in samples:
        if sample.reward is None or not math.isfinite(sample.reward):
            raise refused("a missing reward is no number", f"sample {sample.id} has {sample.reward}")


def shaped(sample: Sample, overlong: Overlong, kl_weight: float) -> float:
    """The reward, less what length costs, and `kl_weight` times the summed log(behavior / origin)."""
    assert sample.reward is not None, "checked by require_numbers"
    limit, cache = overlong.max_length, overlong.cache
    length = min(max((sum(sample.completion_mask) - limit + cache) / cache, 0.0), 1.0) if cache else 0.0
    return sample.reward - length - (kl_weight * float(behavior_kl(sample).sum()) if kl_weight else 0.0)


def require_trajectories(samples: Sequence[Sample], kl_weight: float) -> None:
    """Each has loss tokens, no anchor of its own, a reward, scores of a fixed reference where `kl_weight` needs them,
    and, annotated `truncated`, more than the token that `ended` leaves out. Raises: RefusedError."""
    require_tokens(samples)
    require_no_anchor(samples)
    require_numbers(samples)
    for sample in samples:
        if sample.annotations.get(TRUNCATED) and sum(sample.loss_mask) < 2:
            raise refused("a truncated trajectory goes on from its last token", f"sample {sample.id} has but one")
        if kl_weight:
            behavior_kl(sample)


def ended(sample: Sample) -> tuple[Sample, np.ndarray, float]:
    """The sample as it trains, a critic's values of its loss tokens, and the value of what comes after them: 0, or of
    a truncated one's last token, which is left out."""
    values = chosen(sample.token_annotations["reference_values"], sample)
    if not sample.annotations.get(TRUNCATED):
        return sample, values, 0.0
    last = max(place for place, used in enumerate(sample.loss_mask) if used)
    loss_mask = (*sample.loss_mask[:last], False, *sample.loss_mask[last + 1 :])
    return replace(sample, loss_mask=loss_mask), values[:-1], float(values[-1])


def rewards_T(sample: Sample, kl_weight: float) -> np.ndarray:
    """The reward on the last loss token, and on each of them -`kl_weight` * k1(behavior || origin)."""
    assert sample.reward is not None, "checked by require_trajectories"
    rewards = np.zeros(sum(sample.loss_mask))
    rewards[-1] = sample.reward
    return rewards - kl_weight * behavior_kl(sample) if kl_weight else rewards
