"""What an installation keeps of what it sees, and for how long: the table [privacy]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nightschool.access.personal import KINDS
from nightschool.errors import ConfigError

PRIVACY_KEYS = ("redact", "keep_days", "tenants")


@dataclass(frozen=True, slots=True)
class Privacy:
    """`redact` names the kinds of personal data that are removed before storage; secrets always are.

    `keep_days` is how long exchanges are kept, `None` for ever; `tenant_days` has other numbers for some
    tenants. `pseudonym_key` tells redacted names apart without saying whose they are.
    """

    redact: tuple[str, ...] = ()
    keep_days: float | None = None
    tenant_days: tuple[tuple[str, float], ...] = ()
    pseudonym_key: bytes = field(default=b"", repr=False)

    def days_of(self, tenant: str) -> float | None:
        """How many days this tenant's exchanges are kept, `None` for ever."""
        return dict(self.tenant_days).get(tenant, self.keep_days)


def read_privacy(table: Mapping[str, Any], pseudonym_key: bytes = b"") -> Privacy:
    """The policy that the table [privacy] describes. Raises: ConfigError."""
    unknown = set(table) - set(PRIVACY_KEYS)
    if unknown:
        raise _refuse(f"has no setting {min(unknown)!r}.", f"It knows {', '.join(PRIVACY_KEYS)}.")
    kinds = table.get("redact", [])
    if not isinstance(kinds, list) or not all(kind in KINDS for kind in kinds):
        raise _refuse(f"redact = {kinds!r} is not understood.", f"It is a list of {', '.join(KINDS)}.")
    tenants = table.get("tenants", {})
    if not isinstance(tenants, dict):
        raise _refuse("tenants is not a table.", "Write [privacy.tenants] and below it lines like acme = 30.")
    days = {name: _days(f"tenants.{name}", value) for name, value in tenants.items()}
    keep = _days("keep_days", table["keep_days"]) if "keep_days" in table else None
    return Privacy(tuple(dict.fromkeys(kinds)), keep, tuple(sorted(days.items())), pseudonym_key)


def _days(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 100_000:
        raise _refuse(f"{name} = {value!r} is not a number of days.", "It is above 0; leave it out to keep for ever.")
    return float(value)


def _refuse(what: str, why: str) -> ConfigError:
    return ConfigError(f"[privacy] {what}", why, "Correct it, or see docs/access.md.")
