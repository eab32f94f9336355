"""How fast do exchanges go in, does that stay so as the file grows, and how much room do they take?

    python benchmarks/store.py [--exchanges 1000000] [--batch 256] [--active 200] [--place PATH_OR_URL] [--json]

Sessions of six turns go on in turn, `--active` at a time, so that consecutive exchanges are never of one session.
All begin with one system message of some 1000 characters; a question has some 130, a reply some 260; every request
resends the conversation. Records are made before the clock runs, and kept from Python's collector; what is timed is
the insertion of a batch and its commit. Into a file ten sections are told apart; the slope is a least-squares line
through them.

How to read it: "processor" is the time of the writer's thread, which a busy machine changes little; "clock" is
what passed. "one session" is reading all exchanges of a session, whole, picked at random over the whole file, from
a connection that has read nothing before. "tau-bench" (where NIGHTSCHOOL_DATA names the data) replays 200 runs of an
airline agent as the gateway would have seen them. Its unique text are the bytes of each run's messages, once; the
requests resend them 9.5 times. "file" is everything, with facts and indexes; "kept" the bytes of messages and bodies.
"""

from __future__ import annotations

import gc
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
from common import Row, at_least, at_most, machine_facts, options_of, report

from nightschool.gateway.app import YOUNG_OBJECTS
from nightschool.store import schema
from nightschool.store.database import Store, is_url
from nightschool.store.exchanges import insert_exchanges, session_exchanges
from nightschool.store.ids import new_id
from nightschool.store.records import Caller, Record, Timing
from nightschool.types import Choice, Json

TURNS = 6
SECTIONS = 10
READS = 200
CHUNK = 10_000  # records made at a time, so that memory stays flat
RUNS = Path("tau_bench") / "gpt-4o-airline.json"


def main() -> None:
    parser = options_of(__doc__, exchanges=1_000_000, batch=256, active=200)
    parser.add_argument("--place", help="a path or the URL of an empty Postgres database instead of a temporary file")
    arguments = parser.parse_args()
    machine = machine_facts()
    gc.set_threshold(YOUNG_OBJECTS)  # as the gateway does when it starts
    with tempfile.TemporaryDirectory() as folder:
        place = arguments.place or str(Path(folder) / "store.sqlite")
        rows, facts = fill(place, arguments.exchanges, arguments.batch, arguments.active)
        rows += tau_bench(Path(folder) / "runs.sqlite")
        report("store", arguments, rows, machine, **facts)


def fill(place: str, num_exchanges: int, batch: int, active: int) -> tuple[list[Row], Json]:
    """Insert in sections, then read sessions."""
    per_section = num_exchanges // SECTIONS
    stream = records(active)
    clock: list[float] = []
    processor: list[float] = []
    with Store.open(place) as store:
        for _ in range(SECTIONS):
            wall, cpu = timed_section(store, stream, per_section, batch)
            clock.append(wall)
            processor.append(cpu)
            print(f"{per_section / wall:8.0f} exchanges/s, {1e6 * cpu / per_section:6.0f} µs of processor", flush=True)
        reads = read_sessions(store)
    size = None if is_url(place) else Path(place).stat().st_size / (per_section * SECTIONS)
    each = [1e6 * seconds / per_section for seconds in processor]
    slope = float(np.polyfit(np.arange(SECTIONS), each, 1)[0]) * (SECTIONS - 1) / statistics.mean(each)
    rate = per_section * SECTIONS / sum(clock)
    rows = [
        at_least("exchanges/s, clock", rate, 5000),
        at_least("exchanges/s, processor", per_section * SECTIONS / sum(processor), 5000),
        Row("last section / first, processor", f"{each[-1] / each[0]:.3f}"),
        Row("growth over the file, by slope", f"{100 * slope:+.1f} %"),
        at_most("one session, median, ms", 1000 * statistics.median(reads), 5),
        at_most("one session, 95 %, ms", 1000 * float(np.quantile(reads, 0.95)), 10),
    ]
    if size is not None:
        rows.append(Row("bytes per exchange", f"{size:.0f}"))
    return rows, {"sections_s": clock, "sections_processor_s": processor, "reads_s": reads}


def timed_section(store: Store, stream: Iterator[Record], count: int, batch: int) -> tuple[float, float]:
    """Clock and processor seconds of the writer for `count` exchanges."""
    wall = cpu = 0.0
    left = count
    while left:
        ready = list(islice(stream, min(CHUNK, left)))
        left -= len(ready)
        gc.freeze()  # as the gateway does when it starts; the records are nothing that it has
        for start in range(0, len(ready), batch):
            part = ready[start : start + batch]
            started = time.perf_counter()
            cpu += store.write(lambda conn, part=part: inserted(conn, store.tenant, part))
            wall += time.perf_counter() - started
    return wall, cpu


def inserted(conn: sa.Connection, tenant: str, part: Sequence[Record]) -> float:
    started = time.thread_time()
    insert_exchanges(conn, tenant, part)
    return time.thread_time() - started


def read_sessions(store: Store) -> list[float]:
    """Seconds for reading sessions at random, each on a connection of its own."""
    with store.read() as conn:
        ids = list(conn.scalars(sa.select(schema.sessions.c.id).where(schema.sessions.c.tenant == store.tenant)))
    seconds = []
    for session_id in random.Random(7).sample(ids, min(READS, len(ids))):
        store.engine.dispose()
        with store.read() as conn:
            started = time.perf_counter()
            session_exchanges(conn, store.tenant, session_id)
            seconds.append(time.perf_counter() - started)
    return seconds


def records(active: int) -> Iterator[Record]:
    """Exchanges of `active` sessions in turn; who has ended is replaced by a new one."""
    words = random.Random(1)
    lexicon = ["".join(words.choices("abcdefghijklmnopqrstuvwxyz", k=words.randint(2, 9))) for _ in range(3000)]
    system = {"role": "system", "content": " ".join(words.choices(lexicon, k=150))}
    live = [session(words, lexicon, system) for _ in range(active)]
    while True:
        for place in range(active):
            record = next(live[place], None)
            if record is None:
                live[place] = session(words, lexicon, system)
                record = next(live[place])
            yield record


def session(words: random.Random, lexicon: Sequence[str], system: Json) -> Iterator[Record]:
    history = [system]
    for _ in range(TURNS):
        history.append({"role": "user", "content": " ".join(words.choices(lexicon, k=20))})
        reply = {"role": "assistant", "content": " ".join(words.choices(lexicon, k=40))}
        yield exchange(history, reply, f"chatcmpl-{words.randbytes(16).hex()}", Caller("shop"))
        history.append(reply)


def exchange(history: Sequence[Json], reply: Json, upstream_id: str, caller: Caller) -> Record:
    body = json.dumps({"model": "shop", "messages": history}, separators=(",", ":"), ensure_ascii=False).encode()
    choice = {"index": 0, "message": reply, "finish_reason": "stop"}
    answer = json.dumps({"id": upstream_id, "object": "chat.completion", "choices": [choice]}, ensure_ascii=False)
    return Record(
        id=new_id(),
        caller=caller,
        timing=Timing(time.time(), duration_ms=50.0),
        policy_version="base",
        request_body=body,
        reply_body=answer.encode(),
        messages=tuple(json.loads(body)["messages"]),
        choices=(Choice(0, reply, "stop", None, None),),
        upstream_id=upstream_id,
    )


def tau_bench(path: Path) -> list[Row]:
    """The ratio of a store of real runs to their distinct messages."""
    runs = Path(os.environ.get("NIGHTSCHOOL_DATA", "")) / RUNS
    if not runs.exists():
        return [Row("tau-bench, file / unique text", "not measured", note="NIGHTSCHOOL_DATA names no data")]
    resent = unique = 0
    with Store.open(path) as store:
        for number, run in enumerate(json.loads(runs.read_text(encoding="utf-8"))):
            made = list(calls_of(run["traj"], number))
            resent += sum(len(record.request_body) for record in made)
            unique += sum(len(spelled(message)) for message in run["traj"])
            for record in made:
                store.write(lambda conn, record=record: insert_exchanges(conn, store.tenant, [record]))
        with store.read() as conn:
            columns = (
                schema.messages.c.content,
                schema.spellings.c.data,
                schema.blobs.c.data,
                schema.bodies.c.segments,
            )
            kept = sum(conn.scalar(sa.select(sa.func.sum(sa.func.length(column)))) or 0 for column in columns)
    note = f"{resent / unique:.1f} times in the requests"
    return [
        at_most("tau-bench, file / unique text", path.stat().st_size / unique, 1.5, note),
        at_most("tau-bench, kept / unique text", kept / unique, 1.5),
    ]


def calls_of(messages: Sequence[Json], number: int) -> Iterator[Record]:
    for place, message in enumerate(messages):
        if message["role"] == "assistant" and place:
            caller = Caller("airline", session=f"run {number}")
            yield exchange(messages[:place], message, f"chatcmpl-{number}-{place}", caller)


def spelled(message: Any) -> bytes:
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode()


if __name__ == "__main__":
    main()
