"""Runs say that they live, so that whoever looks can tell a killed one from one that goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from nightschool.store.database import Store
from nightschool.store.schema import runs

BEAT_S, LEASE_S = 10.0, 60.0  # how often a run says that it lives, and how long that is believed


@contextmanager
def kept_alive(store: Store, run_id: str) -> Iterator[None]:
    """Renew a run's lease every `BEAT_S`: a process that is killed leaves a lease that runs out."""
    ended = threading.Event()
    mine = (runs.c.tenant == store.tenant, runs.c.id == run_id, runs.c.state == "running")

    def renew(conn: sa.Connection) -> None:
        conn.execute(sa.update(runs).where(*mine).values(updated_at=time.time()))

    def beat() -> None:
        while not ended.wait(BEAT_S):
            store.submit(renew)  # one that fails is followed by another

    beating = threading.Thread(target=beat, name=f"run {run_id}", daemon=True)
    beating.start()
    try:
        yield
    finally:
        ended.set()
        beating.join()


def state_at(now: float) -> sa.ColumnElement[str]:
    """The state of the rows of `runs`: one that says `running`, and has not been heard of for `LEASE_S`, was
    interrupted, whoever failed to write it."""
    silent = sa.and_(runs.c.state == "running", runs.c.updated_at < now - LEASE_S)
    return sa.case((silent, "interrupted"), else_=runs.c.state)
