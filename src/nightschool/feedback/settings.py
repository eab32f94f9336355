"""What the table [feedback] says: how long feedback waits, and what webhooks mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nightschool.access.privacy import Privacy
from nightschool.errors import ConfigError
from nightschool.feedback.paths import Path, parse_path
from nightschool.feedback.reading.settings import judge_settings
from nightschool.types import TargetKind

KEYS = ("parked_days", "webhooks", "judge", "poll")
WEBHOOK_KEYS = ("secret_env", "signature", "key_type", "key", "name", "value", "success", "failure", "time", "when")
SIGNATURES = ("standard", "github", "stripe")
KEY_TYPES = (TargetKind.EXTERNAL_KEY, TargetKind.EXCHANGE, TargetKind.SESSION)
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Webhook:
    """How one sender's deliveries are read.

    `key`, `value` and `time` are paths into the body, `outcome` a path or the name itself. `success` and `failure`
    are the values that say so; without either the outcome carries no verdict. `when` are paths and the values they
    must have; another delivery is none of ours.
    """

    name: str
    secret: str = field(repr=False)
    signature: str
    key_type: TargetKind
    key: Path
    outcome: Path | str
    value: Path
    success: tuple[Any, ...] | None = None
    failure: tuple[Any, ...] | None = None
    time: Path | None = None
    when: tuple[tuple[Path, tuple[Any, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class FeedbackSettings:
    """`parked_s`: how long feedback waits for its target. `webhooks` by name. `privacy`: what is not stored. `poll`:
    the share of replies that ask for an opinion."""

    parked_s: float = 90 * DAY_S
    webhooks: Mapping[str, Webhook] = field(default_factory=dict)
    privacy: Privacy = field(default_factory=Privacy)
    poll: float = 0.0


def feedback_settings(table: Mapping[str, Any], environment: Mapping[str, str]) -> FeedbackSettings:
    """The table [feedback], checked. Raises: ConfigError."""
    _known(table, KEYS, "feedback")
    judge_settings(table.get("judge"))  # who reads texts asks for it later; a mistake in it is told now
    days = table.get("parked_days", 90)
    if isinstance(days, bool) or not isinstance(days, int | float) or not days > 0:
        raise ConfigError(f"[feedback] parked_days = {days!r} is no number of days.", "", "Correct it.")
    webhooks = table.get("webhooks", {})
    if not isinstance(webhooks, Mapping) or not all(isinstance(hook, Mapping) for hook in webhooks.values()):
        raise ConfigError("[feedback] webhooks is not a table.", "", "Write [feedback.webhooks.NAME].")
    poll = table.get("poll", 0.0)
    if isinstance(poll, bool) or not isinstance(poll, int | float) or not 0 <= poll <= 1:
        raise ConfigError(f"[feedback] poll = {poll!r} is no share of replies.", "It lies within 0 and 1.", "")
    hooks = {name: _webhook(name, hook, environment) for name, hook in webhooks.items()}
    return FeedbackSettings(days * DAY_S, hooks, poll=float(poll))


def _webhook(name: str, table: Mapping[str, Any], environment: Mapping[str, str]) -> Webhook:
    where = f"feedback.webhooks.{name}"
    _known(table, WEBHOOK_KEYS, where)
    for needed in ("secret_env", "key", "name", "value"):
        if not isinstance(table.get(needed), str) or not table[needed]:
            raise ConfigError(f"[{where}] needs `{needed}`, a text.", "", "docs/feedback.md")
    secret = environment.get(table["secret_env"])
    if not secret:
        why = f"The environment variable {table['secret_env']} is not set."
        raise ConfigError(f"The webhook {name!r} has no secret.", why, "Set it to the secret that its sender shows.")
    signature, key_type = table.get("signature", "standard"), table.get("key_type", "external_key")
    for key, value, known in (("signature", signature, SIGNATURES), ("key_type", key_type, KEY_TYPES)):
        if value not in known:
            raise ConfigError(f"[{where}] {key} = {value!r} is not known.", f"Known are {', '.join(known)}.", "")
    outcome = table["name"]
    return Webhook(
        name=name,
        secret=secret,
        signature=signature,
        key_type=TargetKind(key_type),
        key=parse_path(table["key"]),
        outcome=parse_path(outcome) if outcome.startswith("$") else outcome,
        value=parse_path(table["value"]),
        success=_values(table, "success"),
        failure=_values(table, "failure"),
        time=parse_path(table["time"]) if "time" in table else None,
        when=tuple((parse_path(path), _listed(wanted)) for path, wanted in table.get("when", {}).items()),
    )


def _known(table: Mapping[str, Any], names: tuple[str, ...], where: str) -> None:
    unknown = set(table) - set(names)
    if unknown:
        raise ConfigError(f"[{where}] has no setting {min(unknown)!r}.", f"It knows {', '.join(names)}.", "")


def _values(table: Mapping[str, Any], name: str) -> tuple[Any, ...] | None:
    return _listed(table[name]) if name in table else None


def _listed(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list) else (value,)
