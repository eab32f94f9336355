"""`nightschool stages`: a declared sequence of runs, and what each of them added."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nightschool.cli.answer import Answer, Call, Table
from nightschool.cli.naming import SHOWN, find_agent
from nightschool.cli.options import AgentOption, new_app

if TYPE_CHECKING:
    from nightschool.gate.appraisal import Score
    from nightschool.store.database import Store
    from nightschool.training.plans import StudyConfig
    from nightschool.training.stages import Arm, Stage

app = new_app()

Held = Mapping[str, tuple[str, Path]]  # by the stage's name: its objective, and the file of its held-out rows


@app.command()
def stages(
    ctx: typer.Context,
    agent: AgentOption = None,
    leave_out: Annotated[
        bool, typer.Option("--leave-one-out", help="Also run the sequence without each stage in turn.")
    ] = False,
) -> Answer:
    """Run the stages of [[training.stages]] one after the other, each starting from the last one's adapter.

    A tenth of every file is held out; what each stage added is what is missing without it. Stages that are done are
    not run again: an interrupted sequence goes on where it stopped.

    Example: nightschool stages --agent support-shop --leave-one-out
    """
    from nightschool.cli.study import following
    from nightschool.releases.aliases import current
    from nightschool.training.stages import hold_out, read_stages, run_arms

    call: Call = ctx.obj
    declared = read_stages(call.config.section("training").get("stages"), Path.cwd())
    with call.store(create=True) as store:
        with store.read() as conn:
            name = find_agent(conn, store.tenant, agent, call.config)
        folder = call.config.state / "stages" / name
        parts = [hold_out(stage, folder / f"{place}") for place, stage in enumerate(declared, start=1)]
        held = {stage.name: (stage.objective, rows) for stage, rows in parts if rows is not None}
        runs = _Runs(call, store, name, folder / "done.json")
        arms = run_arms([stage for stage, _ in parts], runs.train, leave_out)
        scores = _appraised(call, arms, held)
        with store.read() as conn:
            serving = current(conn, store.tenant, name)
    return _told(name, arms, scores, following(name, arms[0].adapter, serving))


class _Runs:
    """Trains stages, and knows which are done already, by what they learn, from where, and how."""

    def __init__(self, call: Call, store: Store, agent: str, done: Path) -> None:
        self.call = call
        self.store = store
        self.agent = agent
        self.done = done
        self.known: dict[str, str] = json.loads(done.read_text()) if done.exists() else {}

    def train(self, stage: Stage, start: str | None) -> str:
        from nightschool.cli.study import Watched
        from nightschool.training.night import study
        from nightschool.training.plans import Plan

        config = _config(self.call, stage.objective)
        key = _key(stage, start, config)
        if key is not None and key in self.known:
            self.call.progress.tell(f"{stage.name} is done", 0.0)
            return self.known[key]
        watched = Watched(self.call.progress)
        plan = Plan(self.agent, stage.objective, stage.data, start or ("base" if stage.data else "serving"))
        run = study(self.store, self.call.config.state, plan, config, watched)
        watched.end()
        digest = str(run.adapter_digest)
        if key is not None:
            self.known[key] = digest
            self.done.parent.mkdir(parents=True, exist_ok=True)
            self.done.write_text(json.dumps(self.known, indent=1, sort_keys=True) + "\n")
        return digest


def _key(stage: Stage, start: str | None, config: StudyConfig) -> str | None:
    """What a run depends on; `None` for one on the store, where more may have been said since."""
    import hashlib

    if stage.data is None:
        return None
    facts = [stage.objective, start, asdict(config)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode() + stage.data.read_bytes()).hexdigest()[:16]


def _config(call: Call, objective: str) -> StudyConfig:
    from nightschool.cli.settings import study_config
    from nightschool.objectives.catalog import find_objective

    config = study_config(call.config, find_objective(objective))
    return replace(config, backend=replace(config.backend, model=call.config.model))


def _appraised(call: Call, arms: Sequence[Arm], held: Held) -> dict[str, dict[str, Score]]:
    """The scores of each arm's adapter on every held-out file, by adapter and stage."""
    from nightschool.curation.written import read_written
    from nightschool.gate.appraisal import appraise
    from nightschool.models.fetch import find_model
    from nightschool.objectives.catalog import find_objective
    from nightschool.rendering.renderer import Renderer
    from nightschool.training.night import open_local

    if not held:
        return {arm.adapter: {} for arm in arms}
    with call.progress.phase("Appraising on held-out rows", "Appraised on held-out rows"):
        renderer = Renderer.from_folder(find_model(call.config.model))
        backend = open_local(_config(call, arms[0].stages[0].objective).backend)
        kinds = {name: find_objective(objective).material.shape for name, (objective, _) in held.items()}
        rows = {name: read_written(path, kinds[name], renderer) for name, (_, path) in held.items()}
        backend.open(None)
        base = {name: backend.forward(samples) for name, samples in rows.items()}
        found: dict[str, dict[str, Score]] = {}
        for adapter in dict.fromkeys(arm.adapter for arm in arms):
            backend.open(call.config.state / "adapters" / adapter)
            found[adapter] = {
                name: appraise(kinds[name], samples, backend.forward(samples), base[name])
                for name, samples in rows.items()
            }
    return found


def _told(agent: str, arms: Sequence[Arm], scores: Mapping[str, Mapping[str, Score]], hint: str) -> Answer:
    from nightschool.dashboard.formatting import plural

    whole = arms[0]
    names = list(scores[whole.adapter])
    rows = []
    for arm in arms:
        title = "all stages" if arm.without is None else f"without {arm.without.name}"
        cells = [_cell(scores[arm.adapter][name]) for name in names]
        rows.append((title, arm.adapter[:SHOWN], *cells))
    header = ("sequence", "adapter", *(f"held out of {name}" for name in names))
    sentence = f"{plural(len(whole.stages), 'stage')} made {whole.adapter[:SHOWN]} of {agent}."
    data = {
        "agent": agent,
        "adapter": whole.adapter,
        "arms": [
            {
                "without": None if arm.without is None else arm.without.name,
                "adapter": arm.adapter,
                "scores": {name: asdict(score) for name, score in scores[arm.adapter].items()},
            }
            for arm in arms
        ],
    }
    return Answer("stages", sentence, data, (Table(tuple(rows), header, wraps=(0,)),), hint)


def _cell(score: Score) -> str:
    return f"{score.value:.2f} [{score.low:.2f}, {score.high:.2f}]"
