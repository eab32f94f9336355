"""Value models by name, for single rollouts: what success is to be expected of a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from nightschool.errors import InputError
from nightschool.types import Json
from nightschool.valuation.hashed import fit_learned_value
from nightschool.valuation.success import fit_success_model
from nightschool.valuation.tracker import ClusterTracker, fit_tracker
from nightschool.valuation.words import cluster_of


class ValueModel(Protocol):
    """`p_hat` and `p_lo` (N,) are cross-fitted estimates of the rows it was made from, in their order."""

    @property
    def p_hat(self) -> np.ndarray: ...

    @property
    def p_lo(self) -> np.ndarray: ...

    @property
    def report(self) -> Json: ...


def fit_tracker_of_requests(
    requests: Sequence[str],
    rewards: Sequence[float],
    weights: Sequence[float],
    ages: Sequence[float],
    principals: Sequence[str],
    slices: Sequence[str] = (),
) -> ClusterTracker:
    """A tracker whose clusters are requests that differ in numbers alone."""
    return fit_tracker([cluster_of(request) for request in requests], rewards, weights, ages, principals, slices)


MODELS: Mapping[str, Callable[..., ValueModel]] = {
    "success": fit_success_model,
    "tracker": fit_tracker_of_requests,
    "learned": fit_learned_value,
}


def find_value_model(name: str) -> Callable[..., ValueModel]:
    """Raises: InputError when there is none of that name."""
    if name not in MODELS:
        raise InputError(f"There is no value model {name!r}.", f"Known are {', '.join(MODELS)}.", "docs/training.md")
    return MODELS[name]
