"""Runs in the store and on disk: one row, its metrics, the ledger of its exchanges, one folder."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from nightschool.curation.dataset import Line
from nightschool.errors import BusyError, MissingError
from nightschool.store.database import Store
from nightschool.store.schema import datasets, ledger, run_metrics, runs
from nightschool.types import Json, LedgerState, Sample

ROWS_PER_WRITE = 500  # a write of the store stays well below 50 ms


@dataclass(frozen=True, slots=True)
class Run:
    """One run of study. `state`: running, interrupted, failed or done. `adapter_digest` once it is done."""

    id: str
    agent: str
    objective: str
    state: str
    config: Json
    summary: Json
    dataset_digest: str | None = None
    parent_digest: str | None = None
    adapter_digest: str | None = None
    error: str | None = None


def run_folder(state: Path, run_id: str) -> Path:
    return state / "runs" / run_id


def create_run(store: Store, folder: Path, run: Run) -> None:
    """Enter a running run, and write its resolved configuration into its folder, which is there."""
    now = time.time()
    row = {"tenant": store.tenant, "started_at": now, "updated_at": now, **_columns(run)}
    store.write(lambda conn: conn.execute(sa.insert(runs), row))
    (folder / "config.json").write_text(json.dumps(run.config, indent=1, sort_keys=True) + "\n")


def update_run(store: Store, run_id: str, **columns: Any) -> None:
    """Change columns of a run; `finished_at` is set with a state that is final."""
    now = time.time()
    values = {**columns, "updated_at": now}
    if columns.get("state") in ("done", "failed"):
        values["finished_at"] = now
    query = sa.update(runs).where(runs.c.tenant == store.tenant, runs.c.id == run_id).values(values)
    store.write(lambda conn: conn.execute(query))


def load_run(store: Store, run_id: str) -> Run:
    """Raises MissingError when there is no such run."""
    with store.read() as conn:
        query = sa.select(runs).where(runs.c.tenant == store.tenant, runs.c.id == run_id)
        row = conn.execute(query).mappings().first()
    if row is None:
        raise MissingError(f"There is no run {run_id}.", "", "nightschool status")
    return Run(**{name: row[name] for name in Run.__dataclass_fields__})


def enter_dataset(store: Store, digest: str, run: Run, as_of: float, num_samples: int, summary: Json) -> None:
    """Name a dataset in the store, once, and give it to the run."""

    def write(conn: sa.Connection) -> None:
        known = sa.select(datasets.c.digest).where(datasets.c.tenant == store.tenant, datasets.c.digest == digest)
        if conn.scalar(known) is None:
            row = {"digest": digest, "agent": run.agent, "objective": run.objective, "as_of": as_of}
            more = {"num_samples": num_samples, "summary": summary, "created_at": time.time()}
            conn.execute(sa.insert(datasets), {"tenant": store.tenant, **row, **more})

    store.write(write)
    update_run(store, run.id, dataset_digest=digest)


def enter_ledger(store: Store, run_id: str, lines: Sequence[Line], samples: Sequence[Sample]) -> None:
    """Say of every exchange what this run did with it. A repeated call changes nothing."""
    advantages = {sample.id: sample.annotations.get("advantage") for sample in samples}
    by_session = {line.session_id: advantages[line.exchange_id] for line in lines if line.exchange_id in advantages}
    rows = [
        {
            "tenant": store.tenant,
            "run_id": run_id,
            "exchange_id": line.exchange_id,
            "session_id": line.session_id,
            "state": line.state.value,
            "reason": line.reason,
            "reward": line.reward,
            "weight": line.weight,
            "advantage": advantages.get(line.exchange_id, by_session.get(line.session_id))
            if line.state == LedgerState.TRAINED
            else None,
        }
        for line in lines
    ]
    for first in range(0, len(rows), ROWS_PER_WRITE):
        part = rows[first : first + ROWS_PER_WRITE]
        store.write(lambda conn, part=part: conn.execute(sa.insert(ledger).prefix_with("OR REPLACE"), part))


def enter_metrics(store: Store, run_id: str, step: int, metrics: dict[str, float]) -> None:
    """Log one step. A step that is taken again after a resume replaces what it logged before."""
    rows = [
        {"tenant": store.tenant, "run_id": run_id, "name": name, "step": step, "value": value}
        for name, value in metrics.items()
    ]

    def write(conn: sa.Connection) -> None:
        conn.execute(
            sa.delete(run_metrics).where(
                run_metrics.c.tenant == store.tenant, run_metrics.c.run_id == run_id, run_metrics.c.step == step
            )
        )
        conn.execute(sa.insert(run_metrics), rows)

    store.write(write)


@contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """Hold a run for this process; the lock ends with the process.

    Raises:
        BusyError: another process works on it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(
                f"Run {folder.name} is being worked on.", "Another process holds its lock.", "nightschool status"
            ) from None
        yield


def _columns(run: Run) -> Json:
    return {name: getattr(run, name) for name in Run.__dataclass_fields__}
