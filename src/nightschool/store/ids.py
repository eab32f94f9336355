"""UUIDv7 identifiers: they sort by the time they were made."""

from __future__ import annotations

import os
import threading
import time

_lock = threading.Lock()
_last = 0


def new_id() -> str:
    """A UUIDv7 string, greater than every one this process made before.

    Milliseconds fill the first 48 bits, a 12-bit fraction of the millisecond the next field (RFC 9562,
    method 3); a clock that stands still or steps back is advanced by one fraction.
    """
    global _last
    now = time.time_ns()
    stamp = ((now // 1_000_000) << 12) | ((now % 1_000_000) * 4096 // 1_000_000)
    with _lock:
        _last = stamp = max(stamp, _last + 1)
    noise = int.from_bytes(os.urandom(8)) >> 2
    digits = f"{(stamp >> 12) << 80 | 0x7 << 76 | (stamp & 0xFFF) << 64 | 0b10 << 62 | noise:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
