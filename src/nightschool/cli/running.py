"""What a running `nightschool up` leaves in its state folder for other commands: addresses and keys."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from nightschool.errors import MissingError

FILE = "up.json"


@dataclass(frozen=True, slots=True)
class Running:
    """One `up`, or one `record`: then `model` is empty. `engine_pid` is `None` for an engine that somebody else runs.

    `engine_key` protects the engine's port; the file is readable by its owner alone.
    """

    pid: int
    gateway_url: str
    engine_url: str
    agent: str
    model: str
    engine_pid: int | None = None
    engine_key: str | None = field(default=None, repr=False)


def write_running(state: Path, running: Running) -> None:
    """Replace `up.json` whole, so that no reader ever sees half of it."""
    draft = state / f"{FILE}.{os.getpid()}"
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump(asdict(running), file, indent=1)
    draft.replace(state / FILE)


def remove_running(state: Path) -> None:
    (state / FILE).unlink(missing_ok=True)


def read_running(state: Path) -> Running | None:
    """What runs on this state folder; `None` when nothing does, also where a killed `up` left its file."""
    try:
        running = Running(**json.loads((state / FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return running if _lives(running.pid) else None


def need_running(state: Path) -> Running:
    """Raises: MissingError when nothing runs on this state folder."""
    running = read_running(state)
    if running is None:
        raise MissingError(
            "Nightschool is not running.", f"No `nightschool up` uses {state}.", "Start it with `nightschool up`."
        )
    return running


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
