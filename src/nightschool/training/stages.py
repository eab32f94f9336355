"""A sequence of runs, each starting from the last; what a stage added is what is missing without it.

Of every file a part is held out of all runs, by a hash of its lines. The adapter of the whole sequence is appraised on
it (`gate.appraisal`), and that of each sequence with one stage left out. Sequences that begin alike share their runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nightschool.errors import ConfigError, MissingError, TooLittleDataError
from nightschool.objectives.catalog import find_objective

ONE_IN = 10  # lines of a file is held out
LEAST_HELD_OUT = 8


@dataclass(frozen=True, slots=True)
class Stage:
    """One run of a sequence. `data` is the file it learns from, `None` the store."""

    objective: str
    data: Path | None = None

    @property
    def name(self) -> str:
        return self.objective if self.data is None else f"{self.objective} on {self.data.name}"


@dataclass(frozen=True, slots=True)
class Arm:
    """The adapter that a sequence arrives at; `without` names the stage it leaves out, `None` where it has all."""

    stages: tuple[Stage, ...]
    adapter: str
    without: Stage | None = None


def read_stages(rows: Any, folder: Path) -> tuple[Stage, ...]:
    """The stages of a settings file's `[[training.stages]]`; files are named from `folder`.

    Raises:
        ConfigError: a row is no stage.
        InputError: there is no such objective.
    """
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise _refused("There are no stages.", "A sequence is a list of tables [[training.stages]].")
    found = []
    for row in rows:
        unknown = set(row) - {"objective", "data"}
        if unknown or not isinstance(row.get("objective"), str) or not isinstance(row.get("data", ""), str):
            raise _refused(f"{row} is no stage.", "It has an `objective` and, if it learns from a file, its `data`.")
        data = folder / row["data"] if "data" in row else None
        found.append(Stage(find_objective(row["objective"]).name, data))
    return tuple(found)


def hold_out(stage: Stage, folder: Path) -> tuple[Stage, Path | None]:
    """The stage on what is not held out of its file, and the file of what is. Both lie in `folder`.

    Raises:
        MissingError: there is no such file.
        TooLittleDataError: it has too few lines to hold some out.
    """
    if stage.data is None:
        return stage, None
    if not stage.data.is_file():
        raise MissingError(f"There is no file {stage.data}.", "", "Correct `data` in [[training.stages]].")
    lines = [line for line in stage.data.read_text(encoding="utf-8").splitlines() if line.strip()]
    held = [line for line in lines if int(hashlib.sha256(line.encode()).hexdigest()[:8], 16) % ONE_IN == 0]
    if len(held) < LEAST_HELD_OUT:
        raise TooLittleDataError(
            f"{stage.data.name} is too short for a sequence of stages.",
            f"{len(held)} of its {len(lines)} lines would be held out; {LEAST_HELD_OUT} are needed.",
            "Use nightschool train, or write more lines.",
        )
    chosen = set(held)
    folder.mkdir(parents=True, exist_ok=True)
    parts = (stage.data.name, [line for line in lines if line not in chosen]), (f"held-out-{stage.data.name}", held)
    for name, part in parts:
        (folder / name).write_text("\n".join(part) + "\n", encoding="utf-8")
    return replace(stage, data=folder / stage.data.name), folder / f"held-out-{stage.data.name}"


def run_arms(stages: Sequence[Stage], train: Callable[[Stage, str | None], str], leave_out: bool) -> list[Arm]:
    """The whole sequence, and with `leave_out` each with one stage missing.

    `train(stage, start)` runs one stage from an adapter, `None` where it is the first, and returns the new one.
    """
    made: dict[tuple[Stage, ...], str] = {}

    def reach(wanted: tuple[Stage, ...]) -> str:
        start: str | None = None
        for length in range(1, len(wanted) + 1):
            so_far = wanted[:length]
            if so_far not in made:
                made[so_far] = train(so_far[-1], start)
            start = made[so_far]
        return made[wanted]

    whole = tuple(stages)
    arms = [Arm(whole, reach(whole))]
    if leave_out and len(whole) > 1:
        for place, stage in enumerate(whole):
            rest = whole[:place] + whole[place + 1 :]
            arms.append(Arm(rest, reach(rest), stage))
    return arms


def _refused(what: str, why: str) -> ConfigError:
    return ConfigError(what, why, "docs/training.md shows an example.")
