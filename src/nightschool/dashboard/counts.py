"""Counts that took long to make are kept for a while, so that a page which is looked at costs little.

A quick count is made anew each time: small stores always show the present. A kept one says when it was made.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from nightschool.types import Json

QUICK_S = 0.025
PATIENCE = 200.0  # kept this many times as long as it took: half a percent of one core at most
LONGEST_S = 300.0


@dataclass(frozen=True, slots=True)
class _Count:
    found: Json
    made_at: float
    until: float


@dataclass(slots=True)
class Counts:
    """Counts by key. Of several pages that ask for one at once one counts; the others wait for it."""

    clock: Callable[[], float] = time.monotonic
    effort: Callable[[], float] = time.thread_time  # the work itself, not what else the machine does
    _counts: dict[Hashable, _Count] = field(default_factory=dict)
    _counting: dict[Hashable, threading.Lock] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: Hashable, now: float, count: Callable[[], Json]) -> Json:
        """What `count` says, or said a while ago; `counted_at` is added: `now`, or the time of then.

        Units: `now` in seconds since the epoch.
        """
        with self._lock:
            counting = self._counting.setdefault(key, threading.Lock())
        try:
            with counting:
                known = self._counts.get(key)
                if known is None or self.clock() >= known.until:
                    known = self._made(key, now, count)
        finally:
            with self._lock:
                self._counting.pop(key, None)
        return {**known.found, "counted_at": known.made_at}

    def _made(self, key: Hashable, now: float, count: Callable[[], Json]) -> _Count:
        begun = self.effort()
        found = count()
        took = self.effort() - begun
        held = min(LONGEST_S, PATIENCE * took) if took > QUICK_S else 0.0
        made = _Count(found, now, self.clock() + held)
        with self._lock:
            living = {known: kept for known, kept in self._counts.items() if kept.until > self.clock()}
            self._counts = {**living, key: made} if held else living
        return made
