"""Reading what nobody has read yet, in small writes: stopped anywhere, run it again."""

from __future__ import annotations

import time
from collections.abc import Callable

from nightschool.feedback.reading.local import LOCAL, read_locally
from nightschool.feedback.reading.stored import find_unread, insert_readings, said_in
from nightschool.store.database import Store

BATCH = 50  # texts of one transaction
MAX_TEXTS = 100_000

Tell = Callable[[str], None]


def read_by_rules(store: Store, limit: int = MAX_TEXTS, tell: Tell = lambda _line: None) -> int:
    """Read up to `limit` texts by the rules; how many were. Corrections without words stay unread."""
    with store.read() as conn:
        items = find_unread(conn, store.tenant, LOCAL, limit)
    count = 0
    for start in range(0, len(items), BATCH):
        with store.read() as conn:
            said = said_in(conn, store.tenant, items[start : start + BATCH])
        found = list(map(read_locally, said))
        count += store.write(lambda conn, found=found: insert_readings(conn, store.tenant, found, time.time()))
        tell(f"{count} texts")
    return count
