"""A table of the settings file laid over a tree of frozen configuration values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

from nightschool.config import Config
from nightschool.errors import ConfigError
from nightschool.objectives.loss import Objective
from nightschool.training.plans import StudyConfig, default_config

Value = TypeVar("Value")


def study_config(settings: Config, objective: Objective) -> StudyConfig:
    """The settings of a run: what suits the objective, then [training.curation], then the objective's own table.

    Raises: ConfigError.
    """
    tables = settings.section("training")
    config = default_config(objective)
    if "curation" in tables:
        config = overridden(config, {"curation": tables["curation"]}, "training")
    return overridden(config, tables.get(objective.name, {}), f"training.{objective.name}")


def overridden(config: Value, table: Mapping[str, Any], where: str) -> Value:
    """`config` with the values of `table`; sub-tables go into the values they name.

    A value must have the type of the one it replaces (a whole number may stand for a fraction).

    Raises: ConfigError for an unknown name or a wrong type; `where` names the table.
    """
    tree: Any = config
    known = {field.name for field in fields(tree)}
    changed: dict[str, Any] = {}
    for name, given in table.items():
        if name not in known:
            raise ConfigError(
                f"[{where}] has no setting {name!r}.", f"It knows {', '.join(sorted(known))}.", "docs/cli.md"
            )
        current = getattr(config, name)
        if is_dataclass(current):
            if not isinstance(given, Mapping):
                raise ConfigError(f"[{where}] {name} is not a table.", "", f"Write [{where}.{name}].")
            changed[name] = overridden(current, given, f"{where}.{name}")
        else:
            changed[name] = _fitting(current, given, f"[{where}] {name}")
    return replace(tree, **changed)


def _fitting(current: Any, given: Any, name: str) -> Any:
    if isinstance(current, float) and isinstance(given, int) and not isinstance(given, bool):
        return float(given)
    if isinstance(current, tuple) and isinstance(given, list):
        return tuple(given)
    if isinstance(current, StrEnum) and isinstance(given, str):
        known = [str(one) for one in type(current)]
        if given not in known:
            raise ConfigError(f"{name} = {given!r} is not known.", f"It is one of {', '.join(known)}.", "Correct it.")
        return type(current)(given)
    if current is not None and type(given) is not type(current):
        raise ConfigError(f"{name} = {given!r} is not a {type(current).__name__}.", "", "Correct it.")
    return given
