"""Three days and two nights at a small shop: the whole loop, with the commands a person would type.

Day 1, night 1 with a poisoned twin, day 2, night 2, day 3, a roll back and the report. Every finished phase is
in the journal, so that an interrupted demo goes on where it stopped.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nightschool.access.tokens import admin_token
from nightschool.cli.answer import STORE_FILE, Answer
from nightschool.cli.progress import Progress
from nightschool.demo.commands import Commands, harness_line
from nightschool.demo.days import HELD_OUT_SHARE, Crowd, Place, Visit, open_day
from nightschool.demo.handbook import write_handbook
from nightschool.demo.journal import Journal
from nightschool.demo.poison import poisoned_copy
from nightschool.demo.report import tell
from nightschool.errors import InputError
from nightschool.releases.adapters import find_manifest, install_adapter
from nightschool.store.database import Store
from nightschool.types import Json

AGENT = "support-shop"
LAST_DAY = 3


@dataclass(frozen=True, slots=True)
class Script:
    """How big the demo is. The handbook's error rates stand in `handbook.py`."""

    seed: int = 0
    pages: int = 480
    customers: int = 240
    exam_customers: int = 120
    last_day_customers: int = 200
    poison: bool = True


def run(state: Path, script: Script, port: int, progress: Progress) -> Answer:
    """Play the demo in the folder `state`, or go on with it; returns the report.

    Raises: InputError when `state` holds something else, InterruptedRun on Ctrl-C, and what a command refuses.
    """
    check_folder(state, script.seed)
    demo = Demo(state, script, progress)
    with ExitStack() as stack:
        with progress.phase("Starting engine, gateway and dashboard", "Started engine, gateway and dashboard"):
            running = stack.enter_context(demo.commands.up(port))
        progress.tell(f"  Watch it: {running.gateway_url}/")
        place = Place(running.gateway_url, AGENT, admin_token(state))
        demo.teach()
        for day in (1, 2):
            demo.day(place, day)
            demo.night(day)
        demo.day(place, LAST_DAY)
        demo.roll_back_and_return()
        demo.journal.once("report", lambda: {"dashboard": f"{running.gateway_url}/"})
    return tell(demo.journal, script.seed, state)


def check_folder(state: Path, seed: int) -> None:
    """A demo plays in a folder of its own, one seed in each. Raises: InputError."""
    path = state / "demo" / "journal.json"
    elsewhere = f"nightschool demo --seed {seed} --state .nightschool-demo-{seed}"
    if not path.exists() and (state / STORE_FILE).exists():
        raise InputError(f"{state} holds a store that is not a demo's.", "The demo would mix into it.", elsewhere)
    played = Journal(path).noted("seed")
    if played is not None and played != seed:
        raise InputError(f"{state} holds the demo of seed {played}.", f"Seed {seed} needs another folder.", elsewhere)


class Demo:
    """The phases. Each leaves its result in the journal."""

    def __init__(self, state: Path, script: Script, progress: Progress) -> None:
        self.state = state
        self.script = script
        self.progress = progress
        self.folder = state / "demo"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.journal = Journal(self.folder / "journal.json")
        self.journal.note("seed", script.seed)
        settings = self.folder / "nightschool.toml"
        settings.write_text(_settings(script))
        self.commands = Commands(state, settings)

    def teach(self) -> None:
        """Make the day-one agent from the handbook and let it serve."""

        def act() -> Json:
            pages = self.folder / "handbook.jsonl"
            rows = write_handbook(self.script.pages, self.script.seed)
            pages.write_text("".join(json.dumps(row) + "\n" for row in rows))
            run = self._study("--objective", "sft", "--data", str(pages), "--agent", AGENT)
            self.commands.run("start", run["adapter"], "--agent", AGENT)
            return run

        self._phase("teach", act, lambda run: f"Taught the handbook, {run['steps']} steps")

    def day(self, place: Place, day: int) -> None:
        """Serve a day's fresh customers; on the last day half of them speak in words never heard before."""
        last = day == LAST_DAY
        size = self.script.last_day_customers if last else self.script.customers

        def act() -> list[Json]:
            tries = (self.journal.noted(f"day-{day}") or 0) + 1
            self.journal.note(f"day-{day}", tries)  # a day that is begun again has other customers
            name = f"day-{day}" if tries == 1 else f"day-{day}-again-{tries}"
            crowd = Crowd(name, size, self.script.seed, HELD_OUT_SHARE if last else 0.0)
            served = 0

            def tick() -> None:
                nonlocal served
                served += 1
                self.progress.say(f"Day {day}: {served} of {size} customers served")

            visits = open_day(place, self.folder / f"{name}.sqlite", crowd, tick)
            return [_told(visit) for visit in visits]

        self._phase(f"day {day}", act, lambda visits: _day_line(day, visits))

    def night(self, night: int) -> None:
        """Study the day, examine the candidate, promote it if it passed."""
        self._phase(
            f"night {night} train",
            lambda: self._study("--agent", AGENT),
            lambda run: f"Night {night}: studied, {run['steps']} steps",
        )
        if night == 1 and self.script.poison:
            self._phase("poison train", self._study_poisoned, lambda _run: "A poisoned twin studied the same night")
        candidate = self.journal.once(f"night {night} train", dict)["adapter"]
        self._examine(f"night {night} exam", candidate, self._exam_name(night))
        if night == 1 and self.script.poison:
            self._examine("poison exam", self.journal.once("poison train", dict)["adapter"], self._exam_name(night))

        def promote() -> Json:
            if self.journal.once(f"night {night} exam", dict)["decision"] != "promote":
                return {"promoted": False}
            self.commands.run("promote", candidate, "--agent", AGENT)
            return {"promoted": True}

        self._phase(f"night {night} promote", promote, lambda done: "Promoted" if done["promoted"] else "Not promoted")

    def roll_back_and_return(self) -> None:
        """One command back, one command forward again."""

        def act() -> Json:
            if not self.journal.once("night 2 promote", dict)["promoted"]:
                return {"rolled_back": False}
            started = time.perf_counter()
            back = self.commands.run("rollback", "--agent", AGENT, "--reason", "the demo shows it")
            seconds = time.perf_counter() - started
            self.commands.run("promote", self.journal.once("night 2 train", dict)["adapter"], "--agent", AGENT)
            return {"rolled_back": True, "seconds": seconds, "sentence": back["answer"]}

        self._phase(
            "roll back", act, lambda done: "Rolled back and returned" if done["rolled_back"] else "No roll back"
        )

    def _study(self, *words: str, commands: Commands | None = None) -> Json:
        """`nightschool train`, going on with a run that was interrupted."""
        hands = commands or self.commands
        unfinished = (
            hands.run("status", "--agent", AGENT)["data"].get("decisions") or [] if words[0] == "--agent" else []
        )
        stopped = [item["run"]["id"] for item in unfinished if item["kind"] != "promote"]
        if words[0] == "--agent":
            hands.run("audit", *words)
        told = hands.run("train", "--resume", stopped[0]) if stopped else hands.run("train", *words)
        return told["data"]

    def _study_poisoned(self) -> Json:
        """The same night in a copy of the store with every thumb turned over; its adapter joins the shop's."""
        folder = self.folder / "poisoned"
        poisoned_copy(self.state / STORE_FILE, self.state / "adapters", folder)
        run = self._study("--agent", AGENT, commands=Commands(folder, self.commands.settings))
        with Store.open(folder / STORE_FILE) as copy, copy.read() as conn:
            manifest = find_manifest(conn, copy.tenant, run["adapter"])
        assert manifest is not None, "the run has just installed it"
        with Store.open(self.state / STORE_FILE) as store:
            install_adapter(store, self.state, folder / "adapters" / run["adapter"], manifest)
        shutil.rmtree(folder)
        return run

    def _examine(self, phase: str, candidate: str, name: str) -> None:
        def act() -> Json:
            line = harness_line(name, self.script.exam_customers, self.script.seed)
            told = self.commands.run(
                "gate", "run", candidate, "--agent", AGENT, "--harness", line, refusal_is_answer=True
            )
            return told["data"]

        self._phase(phase, act, lambda verdict: verdict["sentence"])

    def _exam_name(self, night: int) -> str:
        return f"exam-{night}"

    def _phase(self, name: str, act: Callable[[], Any], line: Callable[[Any], str]) -> None:
        """Do a phase unless the journal has it; say what came of it."""
        result = self.journal.once(name, act)
        self.progress.tell(f"✓ {line(result)}", self.journal.seconds(name))


def _told(visit: Visit) -> Json:
    return {
        "wanted": visit.customer.wanted,
        "held_out": visit.customer.held_out,
        "fulfilled": visit.fulfilled,
        "right_tool": visit.right_tool,
        "thumb": visit.reaction.thumb,
        "text": visit.reaction.text,
    }


def _day_line(day: int, visits: list[Json]) -> str:
    judged = sum(visit["thumb"] is not None or visit["text"] is not None for visit in visits)
    served = sum(visit["fulfilled"] for visit in visits)
    return f"Day {day}: {len(visits)} customers, {served} got what they came for, {judged} left feedback"


def _settings(script: Script) -> str:
    return f'agent = "{AGENT}"\n\n[gate]\ncustomers = {script.exam_customers}\nlooks = [1.0]\n'
