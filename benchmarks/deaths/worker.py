"""A process that does what the store is for, beside a gateway's traffic, and is killed.

It stores exchanges and feedback, leases and finishes jobs, publishes adapters, moves an alias and writes checkpoints,
and prints each thing once it is acknowledged. Other exchanges it only queues, as under `reply_first`, and prints them
as sent. Migrations are killed on a new store.

    python -m deaths.worker STORE FOLDER NAME
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from common import Row, at_most, exactly

from nightschool.errors import NightschoolError
from nightschool.feedback.body import read_feedback
from nightschool.feedback.record import insert_feedback
from nightschool.jobs import lease
from nightschool.releases import aliases
from nightschool.releases.adapters import check_adapter, install_adapter
from nightschool.releases.manifest import Manifest
from nightschool.store import schema
from nightschool.store.bodies import get_body
from nightschool.store.database import Store
from nightschool.store.exchanges import insert_exchange, load_exchange
from nightschool.store.ids import new_id
from nightschool.store.records import Caller, Record, Timing
from nightschool.training.states import Position, find_checkpoint, save_checkpoint
from nightschool.types import Choice

POINTS = (
    "exchange.written", "store.before_commit", "store.after_commit", "feedback.written", "job.leased",
    "checkpoint.written", "checkpoint.named", "adapter.named", "alias.recorded", "alias.moved",
    "migrate.before_commit", "migrate.after_commit",
)  # fmt: skip
LATEST = {
    "migrate.before_commit": 1,
    "migrate.after_commit": 1,
    "exchange.written": 40,
    "store.before_commit": 60,
    "store.after_commit": 60,
    "feedback.written": 20,
}
ROUND_S = 60.0
LEASE_S = 0.5
AGENT = "shop"


def rounds(count: int, folder: Path, new_place: Any) -> tuple[list[Row], dict[str, Any]]:
    chance = random.Random(11)
    place, found, seen = new_place(folder, "store"), Counter[str](), Told()
    deaths: Counter[str] = Counter()
    for number in range(count):
        point = "" if number % 3 == 2 else POINTS[(number - number // 3) % len(POINTS)]
        here = new_place(folder, f"new-{number}") if point.startswith("migrate.") else place
        told, died_at = one_round(here, folder, number, point, chance)
        deaths[point or "any instant"] += 1
        if here == place:
            seen.add(told, died_at)
            found += compare(place, folder, seen)
        else:
            with Store.open(here) as store:
                found["damaged"] += not intact(store)
    claims = ("exchanges lost", "exchanges doubled", "feedback lost", "feedback doubled", "jobs lost", "damaged")
    claims += ("adapters lost", "releases lost", "alias without its newest release", "checkpoints lost")
    rows = [exactly(name, found[name], 0) for name in claims]
    acknowledged = sum(map(len, seen.acknowledged.values()))
    rows.append(Row("acknowledged", str(acknowledged), note=f"in {count} rounds"))
    rows.append(Row("queued and lost", str(len(seen.lost)), note=f"of {seen.num_sent} sent"))
    rows.append(at_most("oldest of them, s before the death", max(seen.lost, default=0.0), 1.0))
    return rows, {"acknowledged": acknowledged, "deaths": deaths, "lost_s": seen.lost}


class Told:
    """What all processes so far have printed: acknowledged things by kind, and exchanges merely sent."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, set[str]] = {kind: set() for kind in ("exchange", "feedback", "job", "adapter")}
        self.acknowledged |= {"release": set(), "checkpoint": set()}
        self.sent: dict[str, float] = {}  # of the last process: seconds before its death
        self.num_sent = 0
        self.lost: list[float] = []

    def add(self, lines: list[str], died_at: float) -> None:
        self.sent = {}
        for line in lines:
            kind, name, at = line.split()
            if kind == "sent":
                self.sent[name] = died_at - float(at)
            else:
                self.acknowledged[kind].add(name)
        self.num_sent += len(self.sent)


def one_round(place: str, folder: Path, number: int, point: str, chance: random.Random) -> tuple[list[str], float]:
    """Whole lines of a process that was killed, and when."""
    environment = dict(os.environ)
    if point:
        environment["NIGHTSCHOOL_FAILPOINT"] = f"{point}@{chance.randint(1, LATEST.get(point, 3))}"
    command = [sys.executable, "-m", "deaths.worker", place, str(folder), f"r{number}"]
    output, here = folder / "told", Path(__file__).parents[1]
    with output.open("wb") as told, subprocess.Popen(command, stdout=told, env=environment, cwd=here) as process:
        if not point:
            until = time.monotonic() + ROUND_S
            while not output.stat().st_size and process.poll() is None and time.monotonic() < until:
                time.sleep(0.01)
            time.sleep(chance.uniform(0.0, 0.5))
            process.send_signal(signal.SIGKILL)
        try:
            code = process.wait(ROUND_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = 0
        died_at = time.time()
    if code not in (137, -signal.SIGKILL):
        raise SystemExit(f"Round {number} ({point}) was not killed, it ended with {code}.")
    return output.read_bytes().decode().rpartition("\n")[0].splitlines(), died_at


def compare(place: str, folder: Path, seen: Told) -> Counter[str]:
    """What is missing, doubled or broken now."""
    found: Counter[str] = Counter()
    told = seen.acknowledged
    with Store.open(place) as store, store.read() as conn:
        found["damaged"] += not intact(store)
        ids = list(conn.scalars(sa.select(schema.exchanges.c.id)))
        upstream = list(conn.scalars(sa.select(schema.exchanges.c.upstream_id)))
        found["exchanges lost"] += len(told["exchange"] - set(ids))
        found["exchanges doubled"] += len(upstream) - len(set(upstream))
        for exchange_id in list(told["exchange"])[-20:]:
            exchange = load_exchange(conn, store.tenant, exchange_id)
            found["damaged"] += exchange is None or len(exchange.choices) != 1 or not whole(conn, exchange_id)
        keys = list(conn.scalars(sa.select(schema.feedback.c.id)))
        values = list(conn.scalars(sa.select(schema.feedback.c.target_id)))
        found["feedback lost"] += len(told["feedback"] - set(keys))
        found["feedback doubled"] += len(values) - len(set(values))
        jobs = {row.id: row.state for row in conn.execute(sa.select(schema.jobs.c.id, schema.jobs.c.state))}
        found["jobs lost"] += sum(jobs.get(job_id) != "done" for job_id in told["job"])
        found["adapters lost"] += sum(not served(folder, digest) for digest in told["adapter"])
        releases = conn.execute(sa.select(schema.releases).order_by(schema.releases.c.at)).all()
        found["releases lost"] += len(told["release"] - {row.id for row in releases})
        alias = conn.execute(sa.select(schema.aliases)).all()
        right = not releases or (len(alias) == 1 and alias[0].release_id == releases[-1].id)
        found["alias without its newest release"] += not right or not (not alias or served(folder, alias[0].digest))
        done = [int(name) for name in told["checkpoint"]]
        newest = find_checkpoint(folder / "run")
        found["checkpoints lost"] += bool(done) and (newest is None or newest[1].done < max(done))
        seen.lost += [age for name, age in seen.sent.items() if name not in set(ids)]
    return found


def intact(store: Store) -> bool:
    """What the database itself says of its file; Postgres checks its pages and its log as it reads them."""
    with store.read() as conn:
        if store.engine.dialect.name != "sqlite":
            return all(
                conn.execute(sa.select(sa.func.count()).select_from(t)).one() for t in schema.metadata.tables.values()
            )
        return conn.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"


def whole(conn: sa.Connection, exchange_id: str) -> bool:
    query = sa.select(schema.exchanges.c.request_body).where(schema.exchanges.c.id == exchange_id)
    try:
        return bool(get_body(conn, "default", conn.scalars(query).one()))
    except NightschoolError:
        return False


def served(folder: Path, digest: str) -> bool:
    try:
        check_adapter(folder / "adapters" / digest, digest)
    except NightschoolError:
        return False
    return True


def work(place: str, folder: Path, name: str) -> None:
    """Do everything, again and again, until killed. One line for each thing that is acknowledged."""
    (folder / "run").mkdir(exist_ok=True)
    with Store.open(place) as store:
        for number in range(1_000_000):
            key = f"{name}-{number}"
            kept, queued = exchange(key), exchange(f"{key}-queued")
            store.submit(lambda conn, record=queued: insert_exchange(conn, "default", record))
            tell("sent", queued.id)
            tell("exchange", store.write(lambda conn, record=kept: insert_exchange(conn, "default", record)))
            said = read_feedback({"exchange": f"later-{key}", "kind": "thumb", "value": True}, time.time())
            receipt = store.write(lambda conn, said=said: insert_feedback(conn, "default", said, False, time.time()))
            tell("feedback", receipt.id)
            if number % 3 == 0:
                finish_a_job(store, key)
            if number % 4 == 0:
                move_an_alias(store, folder, key)
            if number % 4 == 1:
                newest = find_checkpoint(folder / "run")
                done = (newest[1].done if newest else 0) + 1
                save_checkpoint(folder / "run", _Backend(), Position(done=done))
                tell("checkpoint", str(done))


def exchange(key: str) -> Record:
    """The first of a session, with a history of its own."""
    messages = ({"role": "system", "content": "Answer. " * 40}, {"role": "user", "content": f"Question {key}?"})
    reply = {"role": "assistant", "content": f"Answer {key}."}
    return Record(
        id=new_id(),
        caller=Caller(AGENT),
        timing=Timing(time.time()),
        policy_version="base",
        request_body=json.dumps({"messages": messages}).encode(),
        reply_body=json.dumps(reply).encode(),
        messages=messages,
        choices=(Choice(0, reply, "stop", (1, 2), (-0.5, -1.0)),),
        upstream_id=f"up-{key}",
    )


def finish_a_job(store: Store, key: str) -> None:
    store.write(lambda conn: lease.enqueue(conn, "default", "train", key, {}))
    job = store.write(lambda conn: lease.claim(conn, "default", ("train",), key, LEASE_S))
    if job is not None:
        store.write(lambda conn: lease.finish(conn, "default", job, {}))
        tell("job", job.id)


def move_an_alias(store: Store, folder: Path, key: str) -> None:
    source = folder / f"made-{key}"
    source.mkdir()
    config = {"peft_type": "LORA", "r": 1, "target_modules": ["q_proj"]}
    (source / "adapter_config.json").write_text(json.dumps(config))
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (source / "adapter_model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    manifest = Manifest(AGENT, "b" * 64, "c" * 64, "d" * 64, ("q_proj",), None, None, "0.1.0", key)
    digest = install_adapter(store, folder, source, manifest)
    tell("adapter", digest)
    with store.read() as conn:
        first = aliases.current(conn, "default", AGENT) is None
    if first:
        release = aliases.start(store, AGENT, digest, "benchmark")
    else:
        release = aliases.promote(store, AGENT, digest, by="benchmark", reason="to kill it", override=True)
    tell("release", release.id)


class _Backend:
    """Writes a state, as a trainer would."""

    def save_state(self, path: Path) -> None:
        path.mkdir()
        (path / "weights").write_bytes(bytes(4096))


def tell(kind: str, name: str) -> None:
    """One line in one write: whole or not there."""
    os.write(1, f"{kind} {name} {time.time()}\n".encode())


if __name__ == "__main__":
    work(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
