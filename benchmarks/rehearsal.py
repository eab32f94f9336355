"""What does a night cost outside the agent's trade, with and without rehearsal?

Claim: rehearsing the shipped general conversations beside the feedback keeps the likelihood of the gate's probe
answers within its margin (0.10 nats per token), where the same night without them loses more; the drift on held-out
sessions, which is what the night buys, stays the same.

    python benchmarks/rehearsal.py benchmarks/out/overnight/seed-0 benchmarks/out/overnight/seed-1

Takes the nights that the overnight benchmark played, studies each one's dataset again from the same incumbent with
both weights, and scores the probes' reference answers under incumbent and result. The rehearsed conversations and the
probes share no text (a test compares them). The interval is over the probes, paired, 95 %.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
from scipy import stats

from nightschool.curation.written import render
from nightschool.gate.probes import load_probes
from nightschool.models.fetch import find_model
from nightschool.rendering.renderer import Renderer
from nightschool.store.database import Store
from nightschool.store.schema import runs
from nightschool.training import night
from nightschool.training.backend import Backend
from nightschool.training.loop import Now, run_loop
from nightschool.training.runs import Run, load_run, run_folder
from nightschool.types import Sample

OUT = Path(__file__).parent / "out"
WEIGHTS = (0.0, 1.0)


class Unwatched:
    def step(self, now: Now) -> None:
        print(f"\r  step {now.step} of {now.num_steps}", end="", flush=True)

    def wants_halt(self) -> bool:
        return False


def study_again(backend: Backend, state: Path, run: Run, weight: float, probes: list[Sample]) -> dict[str, Any]:
    """One night again with this weight of rehearsal; how the probes and the held-out sessions moved."""
    folder = run_folder(state, run.id)
    rows = night.read_dataset(folder)
    again = replace(run, config={**run.config, "rehearsal_weight": weight})
    course, _ = night.course_of(again, folder, state, rows)
    backend.open(course.parent)
    before = likelihoods(backend, probes)
    with tempfile.TemporaryDirectory() as work:
        outcome = run_loop(backend, course, Path(work), Unwatched())
    print()
    moved = likelihoods(backend, probes) - before
    half = float(stats.t.ppf(0.975, len(moved) - 1)) * moved.std(ddof=1) / len(moved) ** 0.5
    return {
        "weight": weight,
        "probes_nats_per_token": float(moved.mean()),
        "half_width": float(half),
        "drift": outcome.windows[-1]["drift"],
        "steps": outcome.steps,
        "seconds": outcome.seconds,
    }


def likelihoods(backend: Backend, probes: list[Sample]) -> np.ndarray:
    """Mean log-probability per token of each probe's reference answer."""
    scored = backend.forward(probes)
    return np.array([np.mean([value for value in row if value is not None]) for row in scored])


def reference_answers() -> list[Sample]:
    """The probes' reference answers as samples; only the last turn counts."""
    renderer = Renderer.from_folder(find_model("smollm2-135m"))
    samples = []
    for probe in load_probes():
        row = {"messages": [*probe.messages, {"role": "assistant", "content": probe.reference}]}
        sample = render(row, renderer, probe.id)
        start = len(renderer.prompt_ids(probe.messages))
        last = tuple(place >= start for place in range(len(sample.token_ids)))
        samples.append(replace(sample, completion_mask=last, loss_mask=last))
    return samples


def nights_of(store: Store) -> list[Run]:
    query = sa.select(runs.c.id).where(
        runs.c.tenant == store.tenant, runs.c.objective == "oapl", runs.c.state == "done"
    )
    with store.read() as conn:
        ids = list(conn.scalars(query.order_by(runs.c.started_at)))
    return [load_run(store, run_id) for run_id in ids]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("states", type=Path, nargs="+")
    probes = reference_answers()
    backend = night.open_local(night.BackendConfig())
    rows = []
    for state in parser.parse_args().states:
        with Store.open(state / "store.sqlite") as store:
            for number, run in enumerate(nights_of(store), start=1):
                for weight in WEIGHTS:
                    rows.append(
                        {"state": state.name, "night": number} | study_again(backend, state, run, weight, probes)
                    )
    (OUT / "rehearsal.json").write_text(json.dumps(rows, indent=1))
    print("| state | night | rehearsal | probes, nats per token [95 %] | KL on held-out sessions | seconds |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        low, high = (row["probes_nats_per_token"] + sign * row["half_width"] for sign in (-1, 1))
        span = f"{row['probes_nats_per_token']:+.3f} [{low:+.3f}, {high:+.3f}]"
        cells = (row["state"], row["night"], row["weight"], span, f"{row['drift']['kl']:.2f}", f"{row['seconds']:.0f}")
        print("| " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    main()
