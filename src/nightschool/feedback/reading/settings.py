"""The table [feedback.judge]: which model reads texts beside the rules, and what it may cost."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from nightschool.config import check_engine_url
from nightschool.errors import ConfigError

BOUNDS = {
    "votes": (1, 25),
    "temperature": (0.0, 2.0),
    "max_tokens": (16, 8192),
    "attempts": (1, 10),
    "timeout_s": (0.1, 600.0),
    "budget": (1, 1_000_000),
}


@dataclass(frozen=True, slots=True)
class JudgeSettings:
    """A server that speaks chat completions at `url`, and the `model` it is asked for.

    `key_env` names the environment variable with its key. Each text is put to it `votes` times at `temperature`, for
    at most `max_tokens` each; a request that fails is sent `attempts` times, and takes `timeout_s` at most. One run of
    the command sends at most `budget` requests.
    """

    url: str
    model: str
    key_env: str = ""
    votes: int = 3
    temperature: float = 0.7
    max_tokens: int = 300
    attempts: int = 3
    timeout_s: float = 60.0
    budget: int = 1000

    @property
    def key(self) -> str | None:
        """Raises: ConfigError when the variable is empty."""
        if not self.key_env:
            return None
        key = os.environ.get(self.key_env)
        if not key:
            raise _refuse(f"key_env = {self.key_env!r} names a variable that is not set.", "Set it to the judge's key.")
        return key


def judge_settings(table: object) -> JudgeSettings | None:
    """The settings of a table [feedback.judge], `None` where there is none. Raises: ConfigError."""
    if table is None:
        return None
    if not isinstance(table, Mapping):
        raise _refuse("is not a table.", "Write [feedback.judge] and its settings below.")
    known = {field.name: field for field in fields(JudgeSettings)}
    unknown = set(table) - set(known)
    if unknown:
        raise _refuse(f"has no setting {min(unknown)!r}.", f"It knows {', '.join(known)}.")
    for needed in ("url", "model"):
        if not isinstance(table.get(needed), str) or not table[needed]:
            raise _refuse(f"needs `{needed}`, a text.", "docs/feedback.md")
    check_engine_url(table["url"])
    settings = JudgeSettings(table["url"], table["model"])
    return replace(settings, **{name: _checked(name, getattr(settings, name), value) for name, value in table.items()})


def _checked(name: str, default: Any, value: Any) -> Any:
    if name not in BOUNDS:
        if not isinstance(value, str):
            raise _refuse(f"{name} = {value!r} is not a text.", "Correct it.")
        return value
    low, high = BOUNDS[name]
    whole = isinstance(default, int)
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not low <= value <= high:
        raise _refuse(f"{name} = {value!r} is out of range.", f"It lies from {low:g} to {high:g}.")
    return value if whole else float(value)


def _refuse(what: str, next_step: str) -> ConfigError:
    return ConfigError(f"[feedback.judge] {what}", "", next_step)
