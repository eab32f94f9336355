"""What does deleting old exchanges cost, and does a gateway that records meanwhile wait for it?

    python benchmarks/retention.py [--exchanges 1000000] [--keep 0.5] [--rate 20] [--place PATH_OR_URL] [--json]

A store is filled with sessions of six turns (`store.py`). Then all but the newest share `--keep` go, as `nightschool
retain` does it, while another process records `--rate` exchanges a second, one write each.

How to read it: a "transaction" is a write of the deletion, from the moment it has the database's lock until its commit
is told: so long nobody else can write. "processor" is what its work took of one core, without the commit; a busy
machine changes it little. A "write beside it" is what the other process measures, from handing an exchange over to its
commit. Memory is resident memory above that at the start, sampled.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
from common import Row, at_most, exactly, machine_facts, options_of, report, tell
from sqlalchemy import event
from store import records

from nightschool.access.retention import Wish, retain
from nightschool.store.database import Store
from nightschool.store.exchanges import insert_exchanges
from nightschool.store.records import Caller, Record, Timing
from nightschool.store.schema import exchanges
from nightschool.store.writer import Write

STEP_S, QUIET_S = 10.0, 5.0  # between two exchanges of the filled store; before the deletion begins
BATCH = 256
BESIDE = "beside"


def main() -> None:
    if sys.argv[1:2] == ["--beside"]:
        record_beside(sys.argv[2], float(sys.argv[3]))
        return
    parser = options_of(__doc__, exchanges=1_000_000, keep=0.5, rate=20.0)
    parser.add_argument("--place", help="a path or the URL of an empty Postgres database instead of a temporary file")
    asked = parser.parse_args()
    machine = machine_facts()
    with tempfile.TemporaryDirectory() as folder:
        place = asked.place or str(Path(folder) / "store.sqlite")
        with Store.open(place) as store:
            began = time.time() - STEP_S * asked.exchanges
            fill(store, began, asked.exchanges)
            rows = measure(store, place, began + STEP_S * asked.exchanges * (1 - asked.keep), asked.rate)
        report("retention", asked, rows, machine)


def fill(store: Store, began: float, count: int) -> None:
    made = enumerate(islice(records(200), count))
    ready = (replace(record, timing=Timing(began + STEP_S * n, 50.0)) for n, record in made)
    while some := list(islice(ready, BATCH)):
        store.write(lambda conn, some=some: insert_exchanges(conn, store.tenant, some))
    tell(f"{count} exchanges are stored")


def measure(store: Store, place: str, before: float, rate: float) -> list[Row]:
    with beside(place, rate) as told:
        time.sleep(QUIET_S)
        held, worked = time_transactions(store)
        with memory() as grown:
            begun, cpu = time.time(), time.process_time()
            done = retain(store, Wish(before), "benchmark")
            seconds, cpu = time.time() - begun, time.process_time() - cpu
    quiet = np.array([1000 * waited for at, waited in told if at < begun][10:])
    loud = np.array([1000 * waited for at, waited in told if begun <= at <= begun + seconds])
    with store.read() as conn:
        mine = sa.select(sa.func.count()).where(exchanges.c.tenant == store.tenant)
        old = conn.scalar(mine.where(exchanges.c.started_at < before)) or 0
        new = conn.scalar(mine.where(exchanges.c.agent == BESIDE)) or 0
    return [
        exactly("old exchanges left", old, 0),
        exactly("recorded beside it and lost", len(told) - new, 0, f"of {len(told)}"),
        Row("deleted", str(done.exchanges), note=f"{done.messages} messages, {done.bodies} bodies, {done.blobs} blobs"),
        Row("minutes, clock", f"{seconds / 60:.1f}"),
        Row("exchanges/s, processor", f"{done.exchanges / cpu:.0f}"),
        at_most("longest transaction, processor, s", max(worked), 0.5, f"median {1000 * np.median(worked):.0f} ms"),
        at_most("longest transaction, clock, s", max(held), 0.5, f"median {1000 * np.median(held):.0f} ms"),
        at_most("longest wait of a write beside it, s", float(loud.max()) / 1000, 2.5, f"of {len(loud)}"),
        Row("a write beside it, median and 99 %, ms", f"{np.median(loud):.0f}, {np.quantile(loud, 0.99):.0f}"),
        Row("the same before, ms", f"{np.median(quiet):.0f}, {np.quantile(quiet, 0.99):.0f}"),
        at_most("memory above the start, MB", max(grown) / 2**20, 200),
    ]


def time_transactions(store: Store) -> tuple[list[float], list[float]]:
    """Two lists that grow from now on: seconds for which each write held the lock, and of its processor time."""
    held: list[float] = []
    worked: list[float] = []
    began = [0.0]
    write = store.write

    def begin(conn: sa.Connection) -> None:
        if conn.get_execution_options().get("writing"):
            began[0] = time.perf_counter()  # after the store's own listener, which waits for the lock

    def timed(work: Write) -> Any:
        def on_clock(conn: sa.Connection) -> Any:
            started = time.thread_time()
            result = work(conn)
            worked.append(time.thread_time() - started)
            return result

        result = write(on_clock)
        held.append(time.perf_counter() - began[0])
        return result

    event.listen(store.engine, "begin", begin)
    store.write = timed
    return held, worked


@contextlib.contextmanager
def beside(place: str, rate: float) -> Iterator[list[tuple[float, float]]]:
    """Another process records; when it was handed each exchange, and after how many seconds it was committed."""
    told: list[tuple[float, float]] = []
    words = [sys.executable, __file__, "--beside", place, str(rate)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield told
        told += map(tuple, json.loads(process.communicate()[0]))  # its stdin is closed: it tells, and ends


def record_beside(place: str, rate: float) -> None:
    over, told = threading.Event(), []
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    with Store.open(place) as store:
        for made in records(20):
            if over.wait(1 / rate):
                break
            record: Record = replace(made, caller=Caller(BESIDE), timing=Timing(time.time(), 50.0))
            started = time.perf_counter()
            store.write(lambda conn, record=record: insert_exchanges(conn, store.tenant, [record]))
            told.append((record.timing.started_at, time.perf_counter() - started))
    print(json.dumps(told))


@contextlib.contextmanager
def memory() -> Iterator[list[int]]:
    """Resident memory above that at the start, sampled; units: bytes."""
    over, samples = threading.Event(), [0]

    def sample() -> None:
        start = 0
        while not over.wait(0.2):
            now = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
            start = start or now
            samples.append(now - start)

    thread = threading.Thread(target=sample)
    thread.start()
    yield samples
    over.set()
    thread.join()


if __name__ == "__main__":
    main()
