"""One TOML file into plain values. Each stage validates its own table in its own folder."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nightschool.errors import ConfigError

DEFAULT_FILE = Path("nightschool.toml")
SECTIONS = ("gateway", "upstream", "training", "gate", "privacy", "feedback")
PLAIN_KEYS = ("state", "host", "port", "engine_url", "model", "agent", "tenant", "store")
HIGHEST_PORT = 65535


@dataclass(frozen=True, slots=True)
class Config:
    """What one installation is told. `tables` holds the sections as they were written.

    `engine_url` is an engine that somebody else runs, `None` for the embedded one. `agent` is the name that
    serves the bare model until it has a release. `tenant` is whose rows commands and tokens mean. `store` is the
    URL of a Postgres database, `None` for a file in the state folder.
    """

    state: Path = Path(".nightschool")
    host: str = "127.0.0.1"
    port: int = 8700
    engine_url: str | None = None
    model: str = "smollm2-135m"
    agent: str = "assistant"
    tenant: str = "default"
    store: str | None = None
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)

    def section(self, name: str) -> dict[str, Any]:
        """The table `[name]`, empty where the file has none."""
        return dict(self.tables.get(name, {}))


def load_config(path: Path | None = None, environment: Mapping[str, str] | None = None) -> Config:
    """Read `path`, or `nightschool.toml` where it lies; then apply NIGHTSCHOOL_STATE and the like.

    Raises:
        ConfigError: the file is absent although it was named, is no TOML, or holds an unknown or impossible value.
    """
    raw = _read(path)
    unknown = set(raw) - set(PLAIN_KEYS) - set(SECTIONS)
    if unknown:
        known = f"{', '.join(PLAIN_KEYS)} and the tables {', '.join(f'[{name}]' for name in SECTIONS)}"
        raise _refuse(f"{min(unknown)!r} is not a setting.", f"Known are {known}.")
    for name in SECTIONS:
        if not isinstance(raw.get(name, {}), dict):
            raise _refuse(f"{name!r} is not a table.", "Its settings belong below a line [" + name + "].")
    values = {key: raw[key] for key in PLAIN_KEYS if key in raw}
    values |= _from_environment(os.environ if environment is None else environment)
    tables = {name: raw[name] for name in SECTIONS if name in raw}
    return replace(Config(tables=tables), **_checked(values))


def _read(path: Path | None) -> dict[str, Any]:
    if path is None and not DEFAULT_FILE.exists():
        return {}
    path = path or DEFAULT_FILE
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _refuse(f"{path} cannot be read.", f"{error.strerror}.", "Name another file with --config.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _refuse(f"{path} is not TOML.", f"{error}.") from error


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in ("state", "host", "port", "model", "tenant", "store"):
        text = environment.get(f"NIGHTSCHOOL_{key.upper()}")
        if text:
            found[key] = text
    if "port" in found:
        if not found["port"].isdecimal():
            raise _refuse("NIGHTSCHOOL_PORT is not a port.", f"It says {found['port']!r}.")
        found["port"] = int(found["port"])
    return found


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    for key, value in values.items():
        if key == "port":
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= HIGHEST_PORT:
                raise _refuse(f"port {value!r} is out of range.", f"It is a whole number up to {HIGHEST_PORT}.")
        elif not isinstance(value, str) or not value.strip():
            raise _refuse(f"{key} is {value!r}.", "It must be a text that is not empty.")
    if "engine_url" in values:
        check_engine_url(values["engine_url"])
    if "store" in values and not values["store"].startswith(("postgresql://", "postgres://")):
        raise _refuse(f"store {values['store']!r} is no database.", "It must look like postgresql://user@host/name.")
    if "state" in values:
        values["state"] = Path(values["state"]).expanduser()
    return values


def check_engine_url(url: str) -> None:
    """Raises: ConfigError for anything but an http(s) address."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _refuse(f"{url!r} is no engine's address.", "It must look like http://127.0.0.1:8000.")


def _refuse(what: str, why: str, next_step: str = "Correct it, or see docs/cli.md.") -> ConfigError:
    return ConfigError(what, why, next_step)
