"""What objectives share that regress a trajectory's log-ratio on an advantage: the rows they take, values, notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nightschool.errors import RefusedError
from nightschool.objectives.legality import (
    require_no_anchor,
    require_rewards,
    require_tokens,
    require_whole_trajectories,
)
from nightschool.objectives.loss import Loss
from nightschool.types import Sample

SQUARED = Loss("squared_log_ratio")


def require_judged(samples: Sequence[Sample], calibrated: bool) -> None:
    """Whole trajectories with a reward in [0, 1], none with an anchor of its own.

    `calibrated`: rewards between 0 and 1 are calibrated probabilities of success.
    """
    require_tokens(samples)
    require_whole_trajectories(samples)
    require_rewards(samples, calibrated)
    require_no_anchor(samples)


def require_temperature(*temperatures: float) -> None:
    """A temperature divides. Raises: RefusedError when one is not above zero."""
    if not all(temperature > 0 for temperature in temperatures):
        raise RefusedError("The run is refused: temperatures are above zero.", f"{temperatures} are not.", "Set beta.")


def estimate_of(sample: Sample, name: str = "p_hat") -> float:
    """A value model's note on a sample. Raises: RefusedError when it is missing; a missing value is never a number."""
    found = sample.annotations.get(name)
    if found is None:
        raise RefusedError(
            "The run is refused: a single rollout needs a value from outside.",
            f"Sample {sample.id} has no {name}; one reply says nothing of what was to be expected.",
            "Annotate the rows with a value model of nightschool.valuation.",
        )
    return found


def reward_of(sample: Sample) -> float:
    assert sample.reward is not None, "checked by require_rewards"
    return sample.reward


def regressed(sample: Sample, value: float, beta: float, floor: float | None = None) -> Sample:
    """The sample with the `value`, `advantage`, `beta` and `floor` that the squared loss reads.

    A session told in k rows regresses each row's log-ratio on 1/k of what the whole asks for: by Jensen's inequality
    the sum bounds the whole session's loss from above, and both have one gradient at the anchor.
    k * (beta * LR - A / k)^2 / (2 * beta), summed over k rows, is the loss at k * beta with the whole A.
    """
    notes = dict(sample.annotations)
    num_rows = notes.pop("num_rows", 1.0)
    notes |= {"value": value, "advantage": reward_of(sample) - value, "beta": beta * num_rows}
    return replace(sample, annotations=notes if floor is None else {**notes, "floor": floor / num_rows})
