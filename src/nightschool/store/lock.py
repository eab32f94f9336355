"""Locks between processes. They end with the process that holds them, however it ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nightschool.errors import BusyError


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Hold `path` exclusively; waits for whoever has it."""
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def lock_state(state: Path) -> Iterator[None]:
    """Hold a state folder for one `nightschool up`; does not wait.

    Raises:
        BusyError: another process has it; names its pid.
    """
    state.mkdir(parents=True, exist_ok=True)
    with (state / "up.lock").open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            pid = handle.read().strip()
            raise BusyError(
                f"{state} is in use by another nightschool up.",
                f"Process {pid} holds its lock." if pid else "Another process holds its lock.",
                f"Stop it (kill {pid}), or set NIGHTSCHOOL_STATE to another folder." if pid else "nightschool status",
            ) from None
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        try:
            yield
        finally:
            handle.truncate(0)
