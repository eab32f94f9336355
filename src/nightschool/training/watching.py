"""Who is told how a run is going: the store, a file of metrics, a person; and Ctrl-C, which asks it to halt."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Protocol

from nightschool.store.database import Store
from nightschool.training.loop import Now
from nightschool.training.runs import enter_metrics


class Progress(Protocol):
    """What a person sees. `stage` names what is being done before and after the steps; `rows` how far that is; `note`
    tells what came of it."""

    def stage(self, text: str) -> None: ...

    def note(self, text: str) -> None: ...

    def rows(self, done: int, total: int) -> None: ...

    def step(self, now: Now) -> None: ...


class Silent:
    """Nobody is watching."""

    def stage(self, text: str) -> None:
        del text

    def note(self, text: str) -> None:
        del text

    def rows(self, done: int, total: int) -> None:
        del done, total

    def step(self, now: Now) -> None:
        del now


class Halt:
    """Set by the first Ctrl-C; the second one interrupts at once."""

    def __init__(self) -> None:
        self.requested = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take SIGINT meanwhile. Edge: outside the main thread signals cannot be taken, and none are."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self._on_signal)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


class RunWatch:
    """Logs each step of one run and passes it on. See `training.loop.Watch`."""

    def __init__(self, store: Store, run_id: str, folder: Path, progress: Progress, halt: Halt) -> None:
        self.store = store
        self.run_id = run_id
        self.file = folder / "metrics.jsonl"
        self.progress = progress
        self.halt = halt

    def step(self, now: Now) -> None:
        self._forget_from(now.step)
        with self.file.open("a") as handle:
            handle.write(json.dumps({"step": now.step, **now.metrics}) + "\n")
        enter_metrics(self.store, self.run_id, now.step, now.metrics)
        self.progress.step(now)

    def wants_halt(self) -> bool:
        return self.halt.requested

    def _forget_from(self, step: int) -> None:
        """Drop lines of steps that are taken again after a resume from an older checkpoint."""
        if not self.file.exists():
            return
        lines = self.file.read_text().splitlines()
        if lines and json.loads(lines[-1])["step"] >= step:
            kept = [line for line in lines if json.loads(line)["step"] < step]
            self.file.write_text("".join(line + "\n" for line in kept))
