"""How often a key may ask: an allowance that refills steadily, kept in memory."""

from __future__ import annotations

import time
from collections.abc import Callable

MINUTE_S = 60.0
MAX_KEYS = 10_000


class Rates:
    """One allowance per key: at most a minute's worth, refilled evenly (the generic cell rate algorithm).

    The state of a key is one number: the time at which its allowance is full again. Each process counts for
    itself.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._full_at: dict[str, float] = {}

    def take(self, key_id: str, per_minute: int) -> float:
        """Take one request: 0, or the seconds after which one is allowed. A refused request takes nothing."""
        now, each = self._now(), MINUTE_S / per_minute
        full_at = max(self._full_at.get(key_id, now), now) + each
        late = full_at - now - MINUTE_S
        if late > 1e-9:
            return late
        if len(self._full_at) >= MAX_KEYS:
            self._full_at = {key: at for key, at in self._full_at.items() if at > now}
        self._full_at[key_id] = full_at
        return 0.0
