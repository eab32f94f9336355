"""Sitting an exam from the command line: opened, filled by a harness of the local user, probed, closed."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
from dataclasses import asdict, dataclass

from nightschool.access.tokens import admin_token
from nightschool.cli.answer import Answer, Call, Table
from nightschool.cli.naming import SHOWN, find_agent, find_digest, find_exam_id
from nightschool.cli.running import Running, need_running
from nightschool.config import Config
from nightschool.errors import InputError, InterruptedRun, NightschoolError
from nightschool.gate.exam import close_exam, exam_progress, find_exam, open_exam
from nightschool.gate.probes import run_probes
from nightschool.gate.rule import rule_from_config, rule_from_json, statement
from nightschool.gate.suites import Pairs
from nightschool.releases.aliases import BASE
from nightschool.store.database import Store
from nightschool.types import Verdict
from nightschool.upstream.client import EngineClient


@dataclass(frozen=True, slots=True)
class Sitting:
    """An open exam and the two policies that sit it."""

    exam_id: str
    agent: str
    candidate: str
    incumbent: str

    @property
    def models(self) -> tuple[str, str]:
        """The names under which a harness asks for candidate and incumbent."""
        return f"{self.agent}@{self.candidate}", f"{self.agent}@{self.incumbent}"


def open_sitting(store: Store, config: Config, agent: str | None, candidate: str) -> Sitting:
    """Open an exam with the rule of the table [gate]. Raises: see `gate.exam.open_exam`."""
    with store.read() as conn:
        name = find_agent(conn, store.tenant, agent, config)
        digest = find_digest(conn, store.tenant, name, candidate)
    return _sitting(store, open_exam(store, name, digest, rule_from_config(config.section("gate"))))


def opened(store: Store, sitting: Sitting) -> Answer:
    """What a harness needs to know, and what the exam will be able to see."""
    with store.read() as conn:
        rule = rule_from_json(find_exam(conn, store.tenant, sitting.exam_id)["rule"])
    candidate, incumbent = sitting.models
    rows = (
        ("header", f"X-Nightschool-Exam: {sitting.exam_id}"),
        ("candidate", candidate),
        ("incumbent", incumbent),
        ("customers", f"{rule.customers}, the same ones for both"),
        ("rule", statement(rule)),
    )
    sentence = f"Exam {sitting.exam_id} is open: {sitting.candidate[:SHOWN]} against {sitting.incumbent[:SHOWN]}."
    facts = {**asdict(sitting), "candidate_model": candidate, "incumbent_model": incumbent, "customers": rule.customers}
    return Answer("gate.open", sentence, facts, (Table(rows, wraps=(1,)),), f"nightschool gate close {sitting.exam_id}")


def run_harness(call: Call, sitting: Sitting, command: str) -> None:
    """Run the user's own command with the exam in its environment; what it prints goes to stderr.

    Raises: NightschoolError when it fails, InterruptedRun on Ctrl-C. The exam stays open in both cases.
    """
    running = need_running(call.config.state)
    words = shlex.split(command)
    if not words:
        raise InputError("The harness is empty.", "--harness names the command to run.", "nightschool gate run --help")
    candidate, incumbent = sitting.models
    environment = {
        **os.environ,
        "NIGHTSCHOOL_URL": running.gateway_url,
        "NIGHTSCHOOL_EXAM": sitting.exam_id,
        "NIGHTSCHOOL_CANDIDATE": candidate,
        "NIGHTSCHOOL_INCUMBENT": incumbent,
        "NIGHTSCHOOL_TOKEN": admin_token(call.config.state),
    }
    goes_on = f"The exam stays open. Fill it and decide: nightschool gate close {sitting.exam_id}"
    with call.progress.phase(f"The harness fills exam {sitting.exam_id}", "The harness filled the exam"):
        try:
            code = subprocess.run(words, env=environment, stdout=2, check=False).returncode
        except FileNotFoundError as error:
            raise InputError(f"There is no command {words[0]!r}.", "The harness was not run.", goes_on) from error
        except KeyboardInterrupt as error:
            raise InterruptedRun("The harness was interrupted.", "", goes_on) from error
        if code:
            raise NightschoolError("The harness failed.", f"{words[0]} ended with code {code}.", goes_on)


def close_sitting(store: Store, call: Call, exam: str, probes: bool) -> Verdict:
    """Probe both policies where the rule asks for it, then decide. Raises: see `gate.exam.close_exam`."""
    with store.read() as conn:
        exam_id = find_exam_id(conn, store.tenant, exam)
        row = find_exam(conn, store.tenant, exam_id)
    rule = rule_from_json(row["rule"])
    progress = exam_progress(store, exam_id)
    asked = probes and any(suite.source == "extra" for suite in rule.suites)
    looks = row["rule"]["looks_taken"]
    enough = progress.paired >= progress.least or (bool(looks) and looks[-1]["action"] == "decide")
    if row["state"] == "closed" or not enough or not asked:
        return close_exam(store, exam_id)
    running = need_running(call.config.state)
    with call.progress.phase("Asking the probe set", "Asked the probe set"):
        suites = asyncio.run(_probe(running, call.config, _sitting(store, exam_id)))
    return close_exam(store, exam_id, suites)


async def _probe(running: Running, config: Config, sitting: Sitting) -> tuple[Pairs, Pairs]:
    """Both policies on the probes, asked from the engine itself: the gateway does not score."""
    async with EngineClient(running.engine_url, running.engine_key) as engine:
        names = []
        for digest in (sitting.candidate, sitting.incumbent):
            if digest == BASE:
                names.append((await engine.models())[0])
                continue
            await engine.load_adapter(digest, (config.state / "adapters" / digest).resolve())
            names.append(digest)
        return await run_probes(engine, names[0], names[1])


def _sitting(store: Store, exam_id: str) -> Sitting:
    with store.read() as conn:
        row = find_exam(conn, store.tenant, exam_id)
    return Sitting(exam_id, row["agent"], row["candidate"], row["incumbent"])
