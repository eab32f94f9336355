"""Forecasts of runs that are over, beside what they took."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import sqlalchemy as sa

from nightschool.errors import NightschoolError
from nightschool.models.shapes import find_shape
from nightschool.objectives.catalog import find_objective
from nightschool.objectives.loss import tried
from nightschool.planning.devices import Device
from nightschool.planning.forecast import Setting, ideal_s, memory_of
from nightschool.planning.material import find_renderer
from nightschool.planning.work import work_of
from nightschool.store.database import Store
from nightschool.store.schema import runs
from nightschool.training.night import course_over, read_dataset
from nightschool.training.plans import config_of
from nightschool.training.runs import Run, load_run, run_folder

NEWEST = 8


@dataclass(frozen=True, slots=True)
class Compared:
    """One finished run: its steps by the clock and at the device's ideal, its peak memory and the forecast of it.
    `measured_bytes` is `None` of runs that did not record it."""

    run_id: str
    model: str
    steps: int
    ideal_s: float
    measured_s: float
    predicted_bytes: float
    measured_bytes: float | None


def compare(store: Store, state: Path, device: Device, dtype: str) -> list[Compared]:
    """The newest finished runs of this store, if they can be planned again: their data and their model are known.

    `device` is this machine; a run's format is its own, or the one that the machine chooses.
    """
    r = runs.c
    query = sa.select(r.id).where(r.tenant == store.tenant, r.state == "done").order_by(r.started_at.desc())
    with store.read() as conn:
        known = list(conn.scalars(query.limit(NEWEST)))
    return [found for run_id in known for found in _compared(load_run(store, run_id), state, device, dtype)]


def _compared(run: Run, state: Path, device: Device, dtype: str) -> Iterator[Compared]:
    summary, config = run.summary, config_of(run)
    if not summary.get("seconds") or not (run_folder(state, run.id) / "dataset.jsonl").exists():
        return
    try:
        shape = find_shape(config.backend.model)
        renderer, _ = find_renderer((config.backend.model,))
        rows, objective = read_dataset(run_folder(state, run.id)), find_objective(run.objective)
        course = course_over(objective, config, rows, renderer, partial(tried, objective))
    except NightschoolError:  # what cannot be planned again says nothing
        return
    backend = config.backend
    chosen = dtype if backend.dtype == "auto" else backend.dtype
    setting = Setting(shape, device, chosen, backend.rank, backend.token_budget)
    work = work_of(course, backend.token_budget)
    share = summary["steps"] / work.steps
    yield Compared(
        run.id,
        shape.name,
        summary["steps"],
        share * ideal_s(setting, work.trained, work.read),
        summary["seconds"],
        memory_of(setting, work.largest).total,
        summary.get("peak_bytes"),
    )
