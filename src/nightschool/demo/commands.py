"""The demo's hands: the same `nightschool` commands a person would type."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nightschool.cli.running import Running, read_running
from nightschool.errors import InterruptedRun, MissingError, NightschoolError
from nightschool.types import Json

REFUSED = 3
READY_S = 600.0
STOP_S = 60.0


@dataclass(frozen=True, slots=True)
class Commands:
    """`nightschool` on one state folder with one settings file."""

    state: Path
    settings: Path

    def run(self, *words: str, refusal_is_answer: bool = False) -> Json:
        """Run one command; returns its JSON document. What it tells meanwhile goes to the terminal.

        Raises: NightschoolError with the command's own error; InterruptedRun on Ctrl-C.
        """
        told = subprocess.Popen(self._line(*words, "--json"), stdout=subprocess.PIPE, text=True)
        try:
            out, _ = told.communicate()
        except KeyboardInterrupt as error:
            told.wait(STOP_S)  # it got the same Ctrl-C: it saves and ends
            again = f"nightschool demo --state {self.state}"
            raise InterruptedRun("The demo was interrupted.", "What it did is kept.", again) from error
        document = json.loads(out) if out.strip() else {}
        if told.returncode == 0 or (refusal_is_answer and told.returncode == REFUSED and document.get("data")):
            return document
        failure = document.get("error") or document.get("refusal") or {}
        error = NightschoolError(
            failure.get("what", f"nightschool {words[0]} ended with code {told.returncode}."),
            failure.get("why", ""),
            failure.get("next", "nightschool doctor"),
        )
        error.exit_code = told.returncode
        raise error

    @contextmanager
    def up(self, port: int) -> Iterator[Running]:
        """`nightschool up` for the length of the block."""
        log = self.state / "up.log"
        self.state.mkdir(parents=True, exist_ok=True)
        words = self._line("up", "--agent", "support-shop", "--port", str(port), "--find-port")
        with log.open("w") as out:  # a session of its own: Ctrl-C in the terminal is ours to pass on
            serving = subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            yield self._wait(serving, log)
        finally:
            serving.terminate()
            serving.wait(STOP_S)

    def _wait(self, serving: subprocess.Popen, log: Path) -> Running:
        until = time.monotonic() + READY_S
        while time.monotonic() < until:
            running = read_running(self.state)
            if running is not None and running.pid == serving.pid:
                return running
            if serving.poll() is not None:
                break
            time.sleep(0.1)
        raise MissingError("Nightschool did not start.", log.read_text()[-600:].strip(), "nightschool doctor")

    def _line(self, *words: str) -> list[str]:
        common = ["--state", str(self.state), "--config", str(self.settings)]
        return [sys.executable, "-m", "nightschool", *words, *common]


def harness_line(name: str, customers: int, seed: int) -> str:
    """The staging shop as a command line for `nightschool gate run --harness`."""
    module = "nightschool.demo.staging"
    return f"{sys.executable} -m {module} --name {name} --customers {customers} --seed {seed}"
