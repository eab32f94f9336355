"""What a commit that has to wait leaves in the gateway's memory.

    python benchmarks/stall.py [--json]

60 requests/s as in `gateway.py --soak`. After a warm-up another process's write holds the store's lock for some
seconds, again and again, and longer each time but the last: what waits to be stored gathers meanwhile.
"""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
import threading
import time
from pathlib import Path

import gateway
import uvloop
from common import Row, machine_facts, options_of, report, tell

WARM_UP_S, REST_S = 110.0, 12.0
STALLS_S = (1.0, 2.0, 4.0, 4.0)


def watch(database: Path, pid: int, rows: list[Row]) -> None:
    time.sleep(WARM_UP_S)
    before = gateway.resident_mb(pid)
    rows.append(Row("resident after the warm-up, MB", f"{before:.1f}"))
    for stall in STALLS_S:
        connection = sqlite3.connect(database, timeout=10, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        time.sleep(stall)
        connection.execute("ROLLBACK")
        connection.close()
        time.sleep(REST_S)
        now = gateway.resident_mb(pid)
        rows.append(Row(f"after a wait of {stall:g} s, MB", f"{now:.1f}", note=f"{now - before:+.1f}"))
        tell(f"{rows[-1].name} {rows[-1].value}")
        before = now


async def load(url: str, watcher: threading.Thread) -> None:
    async with gateway.load() as made:
        while watcher.is_alive():
            await made.block("gateway", url, gateway.BLOCK_S, gateway.SOAK_RATE, stream=None)
            made.latencies.clear()


def main() -> None:
    asked = options_of(__doc__).parse_args()
    machine, rows = machine_facts(), list[Row]()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "state"
        _, engine = stack.enter_context(gateway.spawned(gateway.run_engine))
        process, url = stack.enter_context(gateway.spawned(gateway.run_gateway, engine, folder, True))
        gateway.wait_ready(f"{url}/health", 30)
        database = next(folder.rglob("store.sqlite"))
        watcher = threading.Thread(target=watch, args=(database, process.pid, rows))
        watcher.start()
        uvloop.run(load(url, watcher))
    report("stall", asked, rows, machine)


if __name__ == "__main__":
    main()
