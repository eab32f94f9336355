"""Paths into a JSON document: `$.ticket.id`, `$.items[0].name`, `$['a key'].b`."""

from __future__ import annotations

import re
from typing import Any

from nightschool.errors import ConfigError

ABSENT = object()
STEP = re.compile(r"\.([A-Za-z_][\w-]*)|\[(\d+)\]|\['([^']*)'\]")

Path = tuple[str | int, ...]


def parse_path(text: str) -> Path:
    """Raises: ConfigError for anything else."""
    if text.startswith("$"):
        steps: list[str | int] = []
        place = 1
        while found := STEP.match(text, place):
            name, index, quoted = found.groups()
            steps.append(int(index) if index else (name or quoted))
            place = found.end()
        if place == len(text):
            return tuple(steps)
    raise ConfigError(f"{text!r} is no path.", "A path looks like $.ticket.id or $.items[0].name.", "docs/feedback.md")


def follow(document: Any, path: Path) -> Any:
    """What lies at `path`, `ABSENT` where nothing does."""
    for step in path:
        if not _holds(document, step):
            return ABSENT
        document = document[step]
    return document


def _holds(document: Any, step: str | int) -> bool:
    if isinstance(step, str):
        return isinstance(document, dict) and step in document
    return isinstance(document, list) and step < len(document)
