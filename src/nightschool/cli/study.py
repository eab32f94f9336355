"""A run from the command line: what it is asked for, how it is watched, what is said at its end."""

from __future__ import annotations

import re
import statistics
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

import sqlalchemy as sa

from nightschool.cli.answer import Answer, Call, Table
from nightschool.cli.naming import SHOWN, find_agent
from nightschool.cli.progress import DONE, Progress, seconds
from nightschool.cli.settings import study_config
from nightschool.dashboard.formatting import number, plural
from nightschool.dashboard.reliability import believed
from nightschool.dashboard.sentences import objective as spoken
from nightschool.errors import InputError, MissingError
from nightschool.objectives.catalog import find_objective
from nightschool.objectives.loss import Objective
from nightschool.objectives.on_policy_distillation import TEACHER
from nightschool.releases.aliases import current
from nightschool.store.database import Store
from nightschool.store.schema import datasets, runs
from nightschool.training.loop import Now
from nightschool.training.night import resume, study
from nightschool.training.plans import Plan, ScorerConfig
from nightschool.training.runs import Run
from nightschool.types import Json

BAR_CELLS = 26
FIRST_ETA_STEP = 3
RECENT_STEPS = 20
UNEVEN = 1.5
DIGEST_PART = re.compile(r"[0-9a-f]{8,64}")
PAST = {
    "choosing sessions": "Chose the sessions",
    "reading the data": "Read the data",
    "asking the teacher": "Asked the teacher",
    "scoring under the fixed reference": "Scored under the fixed reference",
    "loading the model": "Loaded the model",
    "auditing the teacher": "Audited the teacher",
    "studying": "Studied",
    "installing the adapter": "Installed the adapter",
}


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for, as the command line says it."""

    objective: str
    data: Path | None
    agent: str | None
    model: str | None
    start: str | None
    teacher: str | None


def begin(call: Call, wish: Wish) -> Answer:
    """Start a run. Raises: InputError, and what `training.night.study` raises."""
    objective = find_objective(wish.objective)
    call = replace(call, config=replace(call.config, model=wish.model or call.config.model))
    watched = Watched(call.progress)
    with call.store(create=wish.data is not None) as store:
        with store.read() as conn:
            agent = find_agent(conn, store.tenant, wish.agent, call.config)
        state, config = call.config.state, study_config(call.config, objective)
        config = replace(config, backend=replace(config.backend, model=call.config.model))
        if wish.teacher is not None:
            config = replace(config, teacher=_teacher(wish.teacher, objective, state))
        run = study(store, state, Plan(agent, objective.name, wish.data, wish.start), config, watched)
        return told(store, run, watched)


def _teacher(text: str, objective: Objective, state: Path) -> ScorerConfig:
    """Who `--teacher` names."""
    if TEACHER not in objective.loss(objective.rule()).scored:
        why = f"{objective.name} asks nobody outside."
        raise InputError("There is nobody to be taught.", why, "Leave --teacher out.")
    if text.startswith(("http://", "https://")):
        return ScorerConfig(url=text)
    known = [folder.name for folder in (state / "adapters").glob(f"{text}*")] if DIGEST_PART.fullmatch(text) else []
    return ScorerConfig(adapter=known[0]) if len(known) == 1 else ScorerConfig(model=text)


def go_on(call: Call, run_id: str) -> Answer:
    """Take a run up again at its last checkpoint."""
    watched = Watched(call.progress)
    with call.store() as store:
        return told(store, resume(store, call.config.state, _find_run(store, run_id), watched), watched)


def told(store: Store, run: Run, watched: Watched) -> Answer:
    """What came out of a run, and what to do with it next."""
    watched.end()
    digest = run.adapter_digest or ""
    with store.read() as conn:
        serving = current(conn, store.tenant, run.agent)
        d = datasets.c
        mine = (d.tenant == store.tenant, d.digest == run.dataset_digest)
        dataset = conn.scalar(sa.select(d.summary).where(*mine)) or {}
    worth = believed(dataset.get("success_model"))
    summary = run.summary
    steps, took = summary["steps"], summary["seconds"]
    speed = number(summary["tokens"] / took, 0) if took else "0"
    sentence = (
        f"{spoken(run.objective)} made {digest[:SHOWN]}: {plural(steps, 'step')} in {seconds(took)}, {speed} tokens/s."
    )
    rows = [
        ("run", run.id),
        ("adapter", digest),
        ("rows", f"{summary['train']} trained, {summary['held_out']} held out"),
    ]
    rows += [("window", f"{plural(window['steps'], 'step')}: {window['ended']}") for window in summary["windows"]]
    known = (("teacher", "teacher_audit"), ("watch", "watch"))
    rows += [(name, summary[key]["sentence"]) for name, key in known if key in summary]
    data = {
        "run": run.id,
        "agent": run.agent,
        "objective": run.objective,
        "adapter": digest,
        "parent": run.parent_digest,
        "dataset": run.dataset_digest,
        "value_model": dataset.get("success_model"),
        **summary,
    }
    evidence = (Table(tuple(rows), wraps=(1,)), *((_bins(worth), worth["caption"]) if worth else ()))
    return Answer("train", sentence, data, evidence, following(run.agent, digest, serving))


def _bins(worth: Json) -> Table:
    """What a value model said beside what came true."""
    rows = tuple((row["name"], row["predicted"], row["observed"], str(row["rows"])) for row in worth["table"])
    return Table(rows, ("value model", "predicted", "came true, %", "rows"), right=(1, 2, 3))


def following(agent: str, digest: str, serving: str | None) -> str:
    """What is done with a new adapter: an exam where another one serves."""
    command = f'gate run {digest[:SHOWN]} --harness "COMMAND"' if serving else f"start {digest[:SHOWN]}"
    return f"nightschool {command} --agent {agent}"


class Watched:
    """Tells how a run goes: one line, with steps, speed and how long it still takes."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._stage = ""
        self._since = time.monotonic()
        self._recent: deque[float] = deque(maxlen=RECENT_STEPS)
        self._last_at: float | None = None
        self._ends_at = float("inf")

    def stage(self, text: str) -> None:
        self.end()
        self._stage, self._since, self._last_at = text, time.monotonic(), None
        self._progress.say(f"{text[:1].upper()}{text[1:]}", always=True)

    def note(self, text: str) -> None:
        self.end()
        self._progress.tell(f"  {text}")

    def rows(self, done: int, total: int) -> None:
        self._progress.say(f"{self._stage[:1].upper()}{self._stage[1:]}  {done}/{plural(total, 'row')}")

    def step(self, now: Now) -> None:
        at = time.monotonic()
        if self._last_at is not None:
            self._recent.append(at - self._last_at)
        self._last_at = at
        full = round(BAR_CELLS * now.step / now.num_steps)
        bar = "━" * full + "─" * (BAR_CELLS - full)
        speed = number(now.tokens_per_s, 0)
        self._progress.say(
            f"Training  {bar}  {now.step}/{now.num_steps}  {speed} tok/s  {self._left(now, at)}".rstrip()
        )

    def end(self) -> None:
        """The stage is over: it becomes a line in the past with its duration."""
        if self._stage:
            self._progress.tell(f"{DONE} {PAST.get(self._stage, self._stage)}", time.monotonic() - self._since)
        self._stage = ""

    def _left(self, now: Now, at: float) -> str:
        """From the median of the last steps; never longer than what was said before."""
        if len(self._recent) < FIRST_ETA_STEP:
            return ""
        left = now.num_steps - now.step
        usual = statistics.median(self._recent)
        self._ends_at = min(self._ends_at, at + left * usual)
        slowest = max(self._recent)
        about = max(0.0, self._ends_at - at)
        if slowest > UNEVEN * usual:
            return f"{rounded(about)} to {rounded(left * slowest)} left"
        return f"about {rounded(about)} left"


def rounded(value_s: float) -> str:
    """`10 s`, `50 s`, `4 min`: as exact as a forecast deserves."""
    if value_s < 55:
        return f"{max(10, 10 * round(value_s / 10))} s"
    return f"{max(1, round(value_s / 60))} min"


def _find_run(store: Store, text: str) -> str:
    r = runs.c
    with store.read() as conn:
        query = sa.select(r.id).where(r.tenant == store.tenant, sa.func.substr(r.id, -len(text)) == text)
        found = list(conn.scalars(query)) if len(text) >= 4 else []
    if len(found) != 1:
        why = f"{len(found)} runs end like that." if found else "The store knows none of that id."
        raise MissingError(f"There is no run {text!r}.", why, "nightschool status")
    return found[0]
