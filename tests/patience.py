"""Waiting for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(is_so: Callable[[], object], patience_s: float = 60.0) -> None:
    """Ask again and again until `is_so` says something true; fails after `patience_s`."""
    until = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.05)
