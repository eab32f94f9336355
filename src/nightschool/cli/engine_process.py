"""The embedded engine as a supervised process: started, watched, started again when it dies, stopped."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from nightschool.cli.loopback import health
from nightschool.engine.__main__ import KEY_VARIABLE
from nightschool.errors import MissingError

READY_S = 900.0  # a large model from a slow disk
STOP_S = 10.0
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
STEADY_S = 60.0  # an engine that served this long starts again without a longer pause
POLL_S = 0.1
LOG_FILE = "engine.log"
OUT_OF_MEMORY = "It was killed from outside; most often the memory was full."


class EngineProcess:
    """One engine on one free loopback port. `tell` gets one line when it dies and when it is back."""

    def __init__(self, model: Path, state: Path, tell: Callable[[str], None]) -> None:
        self.key = secrets.token_urlsafe(32)
        self.url = ""
        self.state = "starting"  # starting | ready | restarting
        self.model = model
        self._folder = state
        self._tell = tell
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._again_at: float | None = None
        self._pause_s = FIRST_PAUSE_S

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start it on a port that is free now."""
        self.url = f"http://127.0.0.1:{_free_port()}"
        (self._folder / LOG_FILE).unlink(missing_ok=True)
        self._spawn()

    def wait_ready(self, meanwhile: Callable[[float], None]) -> None:
        """Block until it answers; `meanwhile` is called with the seconds waited.

        Raises: MissingError when it ends instead, with its own last words.
        """
        while not self._answers():
            waited = time.monotonic() - self._started_at
            if self._ended() is not None:
                raise MissingError("The engine did not start.", self._last_words(), f"See {self._folder / LOG_FILE}.")
            if waited > READY_S:
                raise MissingError(
                    "The engine did not start.", f"It did not answer within {READY_S:.0f} s.", "nightschool doctor"
                )
            meanwhile(waited)
            time.sleep(POLL_S)
        self.state = "ready"

    def supervise(self) -> bool:
        """Look after it; to be called a few times a second. True when its process id has changed."""
        now = time.monotonic()
        if self._again_at is not None:
            if now < self._again_at:
                return False
            self._again_at = None
            self._spawn()
            return True
        if self._ended() is not None:
            if now - self._started_at > STEADY_S:
                self._pause_s = FIRST_PAUSE_S
            self._tell(f"The engine ended. {self._last_words()} It is started again in {self._pause_s:g} s.")
            self.state = "restarting"
            self._again_at = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        elif self.state != "ready" and self._answers():
            self.state = "ready"
            self._tell(f"The engine is ready again, after {now - self._started_at:.0f} s.")
        return False

    def stop(self) -> None:
        """End it: politely, then by force."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        finally:
            self._close_stdin()

    def _spawn(self) -> None:
        self._close_stdin()
        command = [sys.executable, "-m", "nightschool.cli.engine_child", "--model", str(self.model)]
        command += ["--host", "127.0.0.1", "--port", self.url.rpartition(":")[2]]
        command += ["--adapters", str(self._folder.resolve() / "adapters")]
        with (self._folder / LOG_FILE).open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # its end tells the child that we are gone
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, KEY_VARIABLE: self.key},
                start_new_session=True,  # Ctrl-C is for `up`, which lets running requests finish first
            )
        self._started_at = time.monotonic()
        if self.state != "restarting":
            self.state = "starting"

    def _close_stdin(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def _ended(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def _answers(self) -> bool:
        return health(self.url, self.key) is not None

    def _last_words(self) -> str:
        code = self._ended()
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            why = OUT_OF_MEMORY if -code == signal.SIGKILL else "It was ended from outside."
            return f"{why} ({name})"
        lines = (self._folder / LOG_FILE).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        said = lines[-1].strip() if lines else "It said nothing."
        return f"{said} (code {code})"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
