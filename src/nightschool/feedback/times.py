"""Times as other systems write them, with the unit they turned out to have."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from nightschool.feedback.values import wrong

ISO, ISO_NO_ZONE = "ISO 8601", "ISO 8601 without a zone, read as UTC"
# Seconds since 1970 between 2001 and 2100; a thousand times that is another unit, never another date.
EARLIEST_S, LATEST_S = 1e9, 4.2e9
UNITS = (("seconds", 1.0), ("milliseconds", 1e3), ("microseconds", 1e6), ("nanoseconds", 1e9))


@dataclass(frozen=True, slots=True)
class Moment:
    """Seconds since 1970 (UTC), and the unit in which it was written."""

    at: float
    unit: str


def read_time(value: Any) -> Moment:
    """A date and time, ISO 8601, or a number since 1970 whose unit follows from its size.

    Raises: InputError for what is none of them, or lies outside the years 2001 to 2100.
    """
    if isinstance(value, str):
        number = _number(value.strip())
        if number is None:
            return _from_date(_parse(value.strip()))
        value = number
    if isinstance(value, datetime):
        return _from_date(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        for unit, per_second in UNITS:
            if EARLIEST_S <= value / per_second < LATEST_S:
                return Moment(value / per_second, unit)
    raise wrong(f"time: {value!r} is no time between 2001 and 2100 (ISO 8601, or a number since 1970)")


def _from_date(found: datetime) -> Moment:
    unit = ISO if found.tzinfo else ISO_NO_ZONE
    at = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    if not EARLIEST_S <= at < LATEST_S:
        raise wrong(f"time: {found.isoformat()} does not lie between 2001 and 2100")
    return Moment(at, unit)


def _parse(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise wrong(f"time: {text!r} is no time (ISO 8601, or a number since 1970)") from error


def _number(text: str) -> float | None:
    """A number that is not a compact date such as 20260131, which is none since 1970 either."""
    try:
        return float(text) if len(text) > 8 else None
    except ValueError:
        return None
