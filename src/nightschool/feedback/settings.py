"""What the table [feedback] says."""

from __future__ import annotations

from dataclasses import dataclass

KEYS = ("parked_days",)
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class FeedbackSettings:
    """`parked_s`: how long feedback waits for its target."""

    parked_s: float = 90 * DAY_S
