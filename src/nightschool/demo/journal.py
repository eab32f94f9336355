"""What the demo has already done, so that an interrupted one goes on where it stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Journal:
    """Finished phases with their results, in one JSON file that is replaced atomically."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.phases: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def once(self, phase: str, act: Callable[[], Any]) -> Any:
        """The result of `phase`: from the file if it was finished before, else by doing it now.

        Results are JSON values. The seconds a phase took are kept beside it.
        """
        if phase not in self.phases:
            started = time.perf_counter()
            result = act()
            self.phases[phase] = {"result": result, "seconds": time.perf_counter() - started}
            self.save()
        return self.phases[phase]["result"]

    def note(self, key: str, value: Any) -> None:
        """Keep a value that an unfinished phase needs when it goes on (a run id, an exam id)."""
        self.phases.setdefault("notes", {})[key] = value
        self.save()

    def noted(self, key: str) -> Any:
        return self.phases.get("notes", {}).get(key)

    def seconds(self, phase: str) -> float:
        return self.phases[phase]["seconds"]

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".tmp")
        fresh.write_text(json.dumps(self.phases, indent=1))
        fresh.replace(self.path)
