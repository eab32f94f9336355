"""A real `nightschool up` as a subprocess, for tests that must kill it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from nightschool.cli.running import Running, read_running

READY_S = 120.0
LOOPBACK = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Up:
    """One `nightschool up` in a process of its own, reached the way a person or an agent reaches it."""

    def __init__(self, state: Path, *words: str, **environment: str) -> None:
        self.state = state
        self.out = state.parent / f"{state.name}.out"
        self.err = state.parent / f"{state.name}.err"
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "nightschool", "up", "--state", str(state), *words],
                stdout=out,
                stderr=err,
                env={**os.environ, **environment},
                cwd=state.parent,
            )

    def wait_ready(self, timeout_s: float = READY_S) -> Running:
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            found = read_running(self.state)
            if found is not None and found.pid == self.process.pid:
                return found
            assert self.process.poll() is None, self.err.read_text()
            time.sleep(0.05)
        raise AssertionError(self.err.read_text())

    @property
    def running(self) -> Running:
        found = read_running(self.state)
        assert found is not None
        return found

    def chat(self, max_tokens: int = 3, timeout_s: float = 60, **headers: str) -> tuple[int, dict[str, Any]]:
        body = {"model": "assistant", "messages": [{"role": "user", "content": "to order"}], "max_tokens": max_tokens}
        request = urllib.request.Request(
            f"{self.running.gateway_url}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", **headers},
        )
        try:
            with LOOPBACK.open(request, timeout=timeout_s) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def get(self, path: str) -> tuple[int, str]:
        with LOOPBACK.open(f"{self.running.gateway_url}{path}", timeout=30) as reply:
            return reply.status, reply.read().decode()

    def wait_told(self, text: str, timeout_s: float = 60) -> None:
        """Until `text` stands on its stderr."""
        until = time.monotonic() + timeout_s
        while text not in self.err.read_text():
            assert time.monotonic() < until, self.err.read_text()
            time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(how)
        return self.process.wait(60)

    def end(self) -> None:
        """Whatever the test did, nothing keeps running."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def lives(pid: int) -> bool:
    """Whether a process exists that is not only waiting to be reaped."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
