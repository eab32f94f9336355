"""A run of any objective: from the store, or a file, to an installed adapter.

Whatever goes wrong leaves the run `failed` with its reason, or `interrupted` with what is needed to resume.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from nightschool import __version__
from nightschool.curation.audit import require_audit
from nightschool.curation.dataset import Dataset, Line, Rows, Told, Wanted
from nightschool.curation.gathering import from_file, gather
from nightschool.curation.influence import in_words
from nightschool.curation.legal import believing, require_legal
from nightschool.curation.written import REHEARSAL, read_written
from nightschool.errors import InterruptedRun, NightschoolError, RefusedError, TooLittleDataError
from nightschool.jobs.alive import kept_alive
from nightschool.models.fetch import find_model
from nightschool.objectives import oapl
from nightschool.objectives.catalog import find_objective
from nightschool.objectives.hindsight import HindsightRule
from nightschool.objectives.loss import REPLIES, Material, Objective
from nightschool.objectives.oapl import OaplRule
from nightschool.objectives.regression import SQUARED
from nightschool.objectives.teacher import Audit, distills, sentence
from nightschool.releases.adapters import check_adapter, install_adapter
from nightschool.releases.aliases import BASE, current
from nightschool.releases.manifest import Manifest
from nightschool.rendering.renderer import Renderer
from nightschool.store.database import Store
from nightschool.store.ids import new_id
from nightschool.training import teaching
from nightschool.training.backend import Backend
from nightschool.training.looking import KEPT, Looker, own_prompts, read_questions
from nightschool.training.loop import Course, Outcome, run_loop
from nightschool.training.plans import BackendConfig, NumberFormat, Plan, StudyConfig, config_of
from nightschool.training.runs import (
    Run,
    create_run,
    enter_dataset,
    enter_ledger,
    load_run,
    lock_run,
    run_folder,
    update_run,
)
from nightschool.training.scoring import Scorers, Watching
from nightschool.training.usage import peak_bytes
from nightschool.training.watching import Halt, Progress, RunWatch, Silent
from nightschool.types import Json, LedgerState, Sample

DATASET, TOLD = "dataset.jsonl", "told.jsonl"
REHEARSED = "rehearsal"


Annotate = Callable[[Sequence[Sample], Any], list[Sample]]


def open_local(config: BackendConfig) -> Backend:
    """The backend on this machine."""
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # threads that spin on a shared core cost more than they save
    import torch

    from nightschool.models.base import load_base
    from nightschool.models.lora import LoraConfig
    from nightschool.training.local import LocalBackend

    dtype = None if config.dtype == NumberFormat.AUTO else getattr(torch, config.dtype)
    base = load_base(find_model(config.model), dtype)
    return LocalBackend(base, LoraConfig(config.rank, config.alpha), config.token_budget)


def study(store: Store, state: Path, plan: Plan, config: StudyConfig, progress: Progress | None = None) -> Run:
    """Train a candidate.

    Raises:
        InputError, MissingError: the file to learn from, or who is to score its rows, cannot be used.
        TooLittleDataError: there is too little to learn from; the message says how much would do.
        RefusedError: an objective's requirement is broken, or no step stayed within the drift budget.
        InterruptedRun: Ctrl-C; the message names the command that resumes.
    """
    objective = find_objective(plan.objective)
    Scorers.of(config, objective.loss(config.rule).scored, state).check()
    settings = json.loads(json.dumps(asdict(config)))  # as it is read back
    run = Run(new_id(), plan.agent, objective.name, "running", settings, {}, parent_digest=_start(store, plan))
    folder = run_folder(state, run.id)
    with _guarded(store, run, folder):
        create_run(store, folder, run)
        _choose(store, run, folder, config, plan.data, progress or Silent())
        return _train(store, state, run, progress or Silent())


def _start(store: Store, plan: Plan) -> str | None:
    """The adapter that a run begins at, `None` for the bare base."""
    start = plan.start
    if start is None:
        taught = find_objective(plan.objective).material == Material.DEMONSTRATIONS and plan.data is not None
        start = "base" if taught else "serving"
    if start == "serving":
        with store.read() as conn:
            start = current(conn, store.tenant, plan.agent) or BASE
    return None if start in ("base", BASE) else start


def resume(store: Store, state: Path, run_id: str, progress: Progress | None = None) -> Run:
    """Take an interrupted, failed or killed run up again at its last checkpoint.

    A night that stopped before its dataset was written chooses its sessions again.

    Raises:
        RefusedError: the run is done, or it stopped before it had read its file.
        BusyError: another process works on it.
    """
    run = load_run(store, run_id)
    folder = run_folder(state, run_id)
    if run.state == "done" or not _resumable(run, folder):
        why = "It is done." if run.state == "done" else "It ended before it had read its file."
        raise RefusedError(f"Run {run_id} cannot be resumed.", why, "nightschool train")
    with _guarded(store, run, folder):
        update_run(store, run_id, state="running", error=None, finished_at=None)
        if not (folder / DATASET).exists():
            _choose(store, run, folder, config_of(run), None, progress or Silent())
        return _train(store, state, run, progress or Silent())


def _resumable(run: Run, folder: Path) -> bool:
    """Whether there is what a resume needs: the dataset, or a store to choose it from."""
    return run.parent_digest is not None or run.objective != "sft" or (folder / DATASET).exists()


def _choose(store: Store, run: Run, folder: Path, config: StudyConfig, data: Path | None, progress: Progress) -> None:
    """Build the run's dataset from the store or a file, and write it into the run's folder."""
    progress.stage("choosing sessions" if data is None else "reading the data")
    objective = find_objective(run.objective)
    temperature = 1.0 if config.teacher.url else None
    wanted = Wanted(run.agent, run.parent_digest or BASE, time.time(), config.curation, temperature=temperature)
    renderer = Renderer.from_folder(find_model(config.backend.model))
    if data is None:
        with store.read() as conn:
            dataset = gather(conn, store.tenant, wanted, objective, renderer)
            if objective.material.shape == Material.JUDGED:
                require_audit(conn, store.tenant, run.agent, len(dataset.train))
    else:
        dataset = from_file(data, wanted, objective, renderer)
    if "influence" in dataset.summary:
        progress.note(in_words(dataset.summary["influence"]))
    require_legal(objective, believing(config.rule), dataset, data)
    enter_dataset(store, dataset.rows.digest, run, dataset.as_of, len(dataset.train), dataset.summary)
    _write_dataset(folder, dataset)  # last: a run with this file never chooses again


def _train(store: Store, state: Path, run: Run, progress: Progress) -> Run:
    """From the run's folder to its installed adapter; everything it needs lies in the folder."""
    folder = run_folder(state, run.id)
    rows = read_dataset(folder)
    halt = Halt()
    with halt.listening():
        config = config_of(run)
        scorers = Scorers.of(config, find_objective(run.objective).loss(config.rule).scored, state)
        scored = scorers.score(rows.train, folder, open_local, Watching(progress, halt))
        progress.stage("loading the model")
        course, lines = course_of(run, folder, state, replace(rows, train=scored))
        backend = open_local(config.backend)
        more: Json = {}
        if course.teachers:
            progress.stage("auditing the teacher")
            course, lines, report = _audited(store, run, folder, (backend, course, rows), lines)
            more |= {"teacher_audit": report, "train": report["admitted"]}
        looker = _looker(run, folder, backend, course)
        progress.stage("studying")
        outcome = run_loop(backend, course, folder / "work", RunWatch(store, run.id, folder, progress, halt), looker)
        more |= {} if looker is None else {"watch": looker.report()}
        _require_progress(store, run, outcome, more)
        progress.stage("installing the adapter")
        backend.save_adapter(folder / "adapter")
        digest = install_adapter(store, state, folder / "adapter", _manifest(run, backend, rows.digest))
    enter_ledger(store, run.id, lines, course.train)
    summary = {**asdict(outcome), "windows": list(outcome.windows), "train": len(rows.train)}
    summary |= {"held_out": len(rows.held_out), "peak_bytes": peak_bytes(), **more}
    done = replace(run, state="done", summary=summary, adapter_digest=digest, error=None)
    update_run(store, run.id, state="done", summary=summary, adapter_digest=digest, error=None)
    shutil.rmtree(folder / "work")
    shutil.rmtree(folder / "adapter")
    return replace(done, dataset_digest=rows.digest)


def _audited(
    store: Store, run: Run, folder: Path, school: tuple[Backend, Course, Rows], lines: list[Line]
) -> tuple[Course, list[Line], Json]:
    """The course and the ledger without the rows that their teacher may not teach, and what the audit found.

    Raises:
        TooLittleDataError: too few replies with words were accepted, or rejected, by other means.
        RefusedError: the teacher does not read the words.
    """
    backend, course, rows = school
    found = teaching.kept(folder)
    if found is None:
        config, told = config_of(run), _read_told(folder)
        spell = Renderer.from_folder(find_model(config.backend.model)).tokenizer.decode
        backend.open(course.parent)
        judge = teaching.corrected(told, lambda ids: spell(list(ids), skip_special_tokens=True))
        clip = getattr(config.rule, "clip", 0.0) or HindsightRule().clip  # 0: the loss has none
        lesson = teaching.Class(rows, told, config.audit, clip, judge, config.loop.seed)
        found = teaching.audit_teacher(backend, lesson)
        teaching.keep(folder, found)
    if found.against is not None:
        _refuse_teacher(store, run, found, lines)
    course, lines = teaching.apply(found, course, lines)
    return course, lines, {**found.report, "sentence": sentence(found.report)}


def _refuse_teacher(store: Store, run: Run, found: Audit, lines: list[Line]) -> None:
    """Write down why, row by row, and refuse. Scalar signals ask no teacher."""
    enter_ledger(store, run.id, teaching.refused_lines(found, lines), [])
    report = {**found.report, "sentence": sentence(found.report)}
    update_run(store, run.id, summary={"teacher_audit": report})
    scalar = "oapl" if lines else "bco --data FILE"  # the rows of a file have no ledger
    instead = f"nightschool train --objective {scalar} --agent {run.agent}"
    if not found.enough:
        raise TooLittleDataError("The teacher cannot be audited.", f"{found.against}.", instead)
    why = (
        f"{found.report['accepted']} accepted and {found.report['rejected']} rejected replies say so: {found.against}."
    )
    raise RefusedError("The run is refused: the teacher does not read the words.", why, instead)


def _looker(run: Run, folder: Path, backend: Backend, course: Course) -> Looker | None:
    """Who looks at a distillation; nobody at other runs, where nobody is to, or where the backend draws nothing."""
    config = config_of(run)
    objective = find_objective(run.objective)
    if not config.watch.every or REPLIES not in backend.outputs or not distills(objective, objective.loss(config.rule)):
        return None
    renderer = Renderer.from_folder(find_model(config.backend.model))
    own = [row for row in course.train if not row.id.startswith(REHEARSED)]
    home = own_prompts(course.held_out or own, config.watch.replies)
    questions = read_questions(config.watch.questions, renderer)
    return Looker(backend, renderer, config.watch, home, questions, folder / KEPT)


def course_of(run: Run, folder: Path, state: Path, rows: Rows) -> tuple[Course, list[Line]]:
    """What a run goes through, from its row and its dataset, and the lines of its ledger."""
    config = config_of(run)
    parent = None
    if run.parent_digest is not None:
        parent = state / "adapters" / run.parent_digest
        check_adapter(parent, run.parent_digest)
    renderer = Renderer.from_folder(find_model(config.backend.model))
    course = course_over(find_objective(run.objective), config, rows, renderer)
    return replace(course, parent=parent), _read_lines(folder)


def course_over(
    objective: Objective, config: StudyConfig, rows: Rows, renderer: Renderer, annotate: Annotate | None = None
) -> Course:
    """What a run of the objective over these rows goes through, from a fresh adapter. `annotate` stands in for the
    objective's where rows are not scored yet.

    Raises: what annotating raises.
    """
    rated = [sample for sample in rows.held_out if sample.reward is not None]
    silent = [sample for sample in rows.held_out if sample.reward is None]
    rule = believing(config.rule)
    rated = objective.annotate(rated, rule) if rated and objective.pessimistic else rated
    rehearsed, after = _rehearsal(config, renderer) if objective.anchored else [], objective.after_anchor
    return Course(
        train=(*(annotate or objective.annotate)(rows.train, rule), *rehearsed),
        held_out=(*rated, *silent),
        terms={"": objective.loss(rule), REHEARSED: SQUARED},
        anchored=objective.anchored,
        parent=None,
        config=config.loop,
        drift=config.drift if objective.anchored else None,
        teachers=rows.teachers,
        after_anchor={"": lambda rows: after(rows, rule)} if after else {},
    )


def _rehearsal(config: StudyConfig, renderer: Renderer) -> list[Sample]:
    """General conversations that keep the anchor's log-ratio. Beside OAPL they share its denominators."""
    if not config.rehearsal_weight:
        return []
    written = read_written(REHEARSAL, Material.DEMONSTRATIONS, renderer)
    samples = [replace(sample, id=f"{REHEARSED} {sample.id}") for sample in written]
    shared = isinstance(config.rule, OaplRule)
    rule = config.rule if shared else OaplRule()
    rows = oapl.annotate_rehearsal(samples, rule, config.rehearsal_weight)
    return rows if shared else [replace(row, term=REHEARSED) for row in rows]


def _require_progress(store: Store, run: Run, outcome: Outcome, seen: Json) -> None:
    if all(window["went_back_to_step"] == 0 for window in outcome.windows):
        update_run(store, run.id, summary=seen)
        raise RefusedError(
            "The night changed nothing.",
            f"No step was one to stay at: {outcome.windows[-1]['ended']}.",
            "Lower the learning rate.",
        )


def _manifest(run: Run, backend: Backend, dataset_digest: str) -> Manifest:
    fits = backend.identity
    return Manifest(
        agent=run.agent,
        base_digest=fits.base_digest,
        tokenizer_digest=fits.tokenizer_digest,
        template_digest=fits.template_digest,
        targets=fits.targets,
        parent_digest=run.parent_digest,
        dataset_digest=dataset_digest,
        code_version=__version__,
        run_id=run.id,
    )


@contextmanager
def _guarded(store: Store, run: Run, folder: Path) -> Iterator[None]:
    """Hold the run; leave no run `running` that has ended, however it ended. A killed one is known by its lease."""
    with lock_run(folder), kept_alive(store, run.id):
        try:
            yield
        except InterruptedRun as halted:
            update_run(store, run.id, state="interrupted")
            raise InterruptedRun(halted.what, halted.why, f"nightschool train --resume {run.id}") from None
        except KeyboardInterrupt:
            update_run(store, run.id, state="interrupted")
            if not _resumable(run, folder):
                raise
            again = f"nightschool train --resume {run.id}"
            raise InterruptedRun("The run was interrupted.", "What it had saved is kept.", again) from None
        except NightschoolError as error:
            update_run(store, run.id, state="failed", error=str(error))
            raise
        except Exception as error:  # boundary: a run never stays `running` after its process has left it
            update_run(store, run.id, state="failed", error=f"{type(error).__name__}: {error}")
            raise


def _write_dataset(folder: Path, dataset: Dataset) -> None:
    """The rows, what is known of those with words, and the ledger's lines, each under its name only when complete."""
    _write_lines(folder / TOLD, [asdict(one) for one in dataset.told])
    _write_lines(folder / "ledger.jsonl", [asdict(line) for line in dataset.lines])
    _write_lines(folder / DATASET, dataset.rows.lines())


def _write_lines(path: Path, rows: Sequence[Json]) -> None:
    part = path.with_suffix(".part")
    part.write_text("".join(json.dumps(row) + "\n" for row in rows))
    part.rename(path)


def read_dataset(folder: Path) -> Rows:
    """The rows of a run's folder."""
    return Rows.of_lines(json.loads(line) for line in (folder / DATASET).read_text().splitlines())


def _read_told(folder: Path) -> dict[str, Told]:
    rows = [json.loads(line) for line in (folder / TOLD).read_text().splitlines()]
    return {row["id"]: Told(**{**row, "slices": tuple(row["slices"])}) for row in rows}


def _read_lines(folder: Path) -> list[Line]:
    rows = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    return [Line(**{**row, "state": LedgerState(row["state"])}) for row in rows]
