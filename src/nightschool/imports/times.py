"""Times as logs write them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any


def seconds_of(text: Any) -> float | None:
    """Seconds since 1970 of an ISO time; without a zone it is UTC. `None` for anything else."""
    if not isinstance(text, str) or not text.strip():
        return None
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def iso_of(seconds: float) -> str:
    """The same in UTC, to the microsecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
