"""Which objectives may learn from what there is: each is tried, up to the point where a model would be loaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from nightschool.curation.dataset import Dataset, Wanted
from nightschool.curation.gathering import from_file, gather
from nightschool.errors import NightschoolError
from nightschool.objectives.catalog import OBJECTIVES
from nightschool.objectives.loss import Objective, tried
from nightschool.rendering.renderer import Renderer


@dataclass(frozen=True, slots=True)
class Tried:
    """An objective with the rows it would train on, or with what forbids it."""

    objective: Objective
    num_rows: int
    against: str | None


def require_legal(objective: Objective, rule: Any, dataset: Dataset, data: Path | None) -> None:
    """Refuse what a run would refuse, before a model is loaded.

    Raises: as `objective.annotate`. Where that names no next command, it is the one that says what the rows are good
        for: those of the file `data`, or of what is recorded.
    """
    try:
        tried(objective, dataset.train, rule)
    except NightschoolError as error:
        if error.next_step:
            raise
        place = f"--agent {dataset.agent}" if data is None else f"--data {data}"
        raise type(error)(error.what, error.why, f"nightschool objectives {place}") from None


def believing(rule: Any) -> Any:
    """The settings of an objective in a run: soft rewards come from calibrated sources alone (`feedback.reward`)."""
    return replace(rule, calibrated=True) if "calibrated" in {field.name for field in fields(rule)} else rule


def try_all(
    conn: sa.Connection, tenant: str, wanted: Wanted, renderer: Renderer, data: Path | None = None
) -> Iterator[Tried]:
    """Every objective on the store, or on a file. What several of them learn from is gathered once."""
    gathered: dict[tuple[object, ...], Dataset | NightschoolError] = {}
    for objective in OBJECTIVES.values():
        kind = (objective.material, objective.valued, objective.weighs_behavior, objective.one_version)
        if kind not in gathered:
            try:
                if data is None:
                    gathered[kind] = gather(conn, tenant, wanted, objective, renderer)
                else:
                    gathered[kind] = from_file(data, wanted, objective, renderer)
            except NightschoolError as error:
                gathered[kind] = error
        yield _tried(objective, gathered[kind])


def _tried(objective: Objective, found: Dataset | NightschoolError) -> Tried:
    if isinstance(found, Dataset):
        try:
            return Tried(objective, len(tried(objective, found.train, believing(objective.rule()))), None)
        except NightschoolError as error:
            found = error
    return Tried(objective, 0, f"{found.what} {found.why}".strip())
