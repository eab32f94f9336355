"""What every page of the dashboard costs over a large store: processor time, and compressed size.

The store is made here: sessions of four exchanges, three in ten judged, one night's ledger over the older
half. Each page is asked for once cold and then `--rounds` times; the bound is for the 95th percentile of the
warm ones. Processor time of the whole process, client included: what else the machine does hardly counts.
"""

from __future__ import annotations

import gzip
import json
import statistics
import tempfile
import time
from pathlib import Path
from random import Random

import sqlalchemy as sa
from common import Row, at_most, machine_facts, options_of, report, tell
from starlette.applications import Starlette
from starlette.testclient import TestClient

from nightschool.dashboard.app import build_dashboard
from nightschool.store import schema
from nightschool.store.database import Store
from nightschool.store.exchanges import insert_exchange
from nightschool.store.ids import new_id
from nightschool.store.records import Caller, Record, Timing
from nightschool.types import Choice, Json

AGENT, PER_SESSION, BATCH = "support-shop", 4, 2000
BUDGET_MS = 100.0
DAY_S = 86_400.0


def main() -> None:
    parser = options_of(__doc__, exchanges=100_000, rounds=50, seed=0)
    parser.add_argument("--exact", action="store_true", help="with token ids, as from an engine that gives them")
    parser.add_argument("--store", help="keep the store here, or take the one that is here")
    asked = parser.parse_args()
    machine = machine_facts()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(asked.store) if asked.store else Path(folder) / "store.sqlite"
        fresh = not path.exists()
        with Store.open(path) as store:
            if fresh:
                fill(store, asked.exchanges, asked.exact, Random(asked.seed))
            rows = measure(store, asked.rounds)
    report("dashboard", asked, rows, machine)


def fill(store: Store, number: int, exact: bool, rng: Random) -> None:
    """`number` exchanges: one is inserted as the gateway does, the others are rows like it."""
    tell(f"{number} exchanges")
    now = time.time()
    reply = {"role": "assistant", "content": "It arrives on June 14."}
    record = Record(
        id=new_id(),
        caller=Caller(AGENT, "first"),
        timing=Timing(now - 30 * DAY_S, 900.0, 120.0, 0.4),
        policy_version="base",
        request_body=b'{"model":"support-shop","messages":[{"role":"user","content":"Where is order 8812?"}]}',
        reply_body=json.dumps({"choices": [{"message": reply}]}).encode(),
        messages=({"role": "user", "content": "Where is order 8812?"},),
        choices=(Choice(0, reply, "stop"),),
    )
    store.write(lambda conn: insert_exchange(conn, store.tenant, record))
    with store.read() as conn:
        model = dict(conn.execute(sa.select(schema.exchanges)).mappings().one())
        home = dict(conn.execute(sa.select(schema.sessions)).mappings().one())
    run_id = new_id()
    for first in range(0, number, BATCH):
        rows = [_rows(model, home, at, number, exact, rng) for at in range(first, first + BATCH, PER_SESSION)]
        lines = first < number / 2
        store.write(lambda conn, rows=rows, lines=lines: _write(conn, rows, run_id if lines else None, rng))
    run = {"tenant": "default", "id": run_id, "agent": AGENT, "objective": "oapl", "state": "done"}
    times = {"started_at": now - 15 * DAY_S, "updated_at": now - 15 * DAY_S, "finished_at": now - 15 * DAY_S}
    store.write(lambda conn: conn.execute(schema.runs.insert().values(**run, **times, config={}, summary={})))


def _rows(model: Json, home: Json, place: int, number: int, exact: bool, rng: Random) -> tuple[Json, list[Json]]:
    at = time.time() - 30 * DAY_S * (1 - place / number)
    session = new_id()
    split = rng.choices(("train", "select", "gate"), (8, 1, 1))[0]
    own = {"id": session, "principal": session, "split": split, "external_key": session, "first_at": at}
    own |= {"num_exchanges": PER_SESSION, "last_at": at + 60}
    found = []
    for turn in range(PER_SESSION):
        row = model | {"id": new_id(), "session_id": session, "principal": session, "split": split}
        row |= {"started_at": at + 20 * turn, "status": "error" if rng.random() < 0.01 else "ok"}
        row |= {"branch": rng.choices(("main", "retry", "title", "sub_agent"), (90, 4, 4, 2))[0]}
        row |= {"upstream_id": f"chatcmpl-{row['id']}", "sampler": model["sampler"] | {"seed": place + turn}}
        if exact:
            ids = rng.randbytes(4 * 300)
            row |= {"fidelity": "exact_tokens", "logprob_provenance": "engine", "prompt_ids": ids}
            row |= {"support": "truncated support" if rng.random() < 0.05 else "full", "num_sampled_tokens": 40}
        found.append(row)
    return home | own, found


def _write(conn: sa.Connection, rows: list[tuple[Json, list[Json]]], run_id: str | None, rng: Random) -> None:
    conn.execute(schema.sessions.insert(), [session for session, _ in rows])
    calls = [call for _, found in rows for call in found]
    conn.execute(schema.exchanges.insert(), calls)
    said = []
    for session, found in rows:
        kinds = [("thumb", rng.random() < 0.6)] if rng.random() < 0.25 else []
        kinds += [("text", "that did not help")] if rng.random() < 0.04 else []
        kinds += [("correction", "It is on its way.")] if rng.random() < 0.01 else []
        said += [
            _said(session["id"], rng.choice((None, found[-1]["id"])), kind, value, session["last_at"])
            for kind, value in kinds
        ]
    conn.execute(schema.feedback.insert(), said)
    if run_id is not None:
        conn.execute(schema.ledger.insert(), [_line(call, run_id, rng) for call in calls])


def _said(session: str, exchange: str | None, kind: str, value: object, at: float) -> Json:
    item = {"tenant": "default", "id": new_id(), "idempotency_key": new_id(), "state": "matched", "name": kind}
    item |= {"target_kind": "exchange" if exchange else "session", "target_id": exchange or session}
    item |= {"exchange_id": exchange, "session_id": session, "kind": kind, "value": value, "source": "end_user"}
    return item | {"observed_at": at + 3600, "received_at": at + 3600}


def _line(call: Json, run_id: str, rng: Random) -> Json:
    state, reason = rng.choices(
        (("trained", "trained"), ("held", "no feedback"), ("held", "gate split"), ("excluded", "side branch")),
        (2, 5, 1, 1),
    )[0]
    return {
        "tenant": "default", "run_id": run_id, "exchange_id": call["id"], "session_id": call["session_id"],
        "state": state, "reason": reason, "reward": None, "advantage": None, "weight": None,
    }  # fmt: skip


def measure(store: Store, rounds: int) -> list[Row]:
    client = TestClient(Starlette(routes=build_dashboard(store, lambda: {"agent": AGENT, "lost": 0})))
    session = client.get("/sessions.json").json()["data"]["rows"][0]["id"]
    pages = ["/", "/ledger", "/sessions", "/sessions?outcome=down", "/sessions?q=order", f"/sessions/{session}"]
    pages += ["/feedback", "/feedback?state=parked", "/imports", "/keys", "/runs", "/releases"]
    rows = []
    for page in pages:
        tell(page)
        cold, _ = _once(client, page)
        times = sorted(_once(client, page)[0] for _ in range(rounds))
        p50, p95 = statistics.median(times), times[int(0.95 * (len(times) - 1))]
        size = len(gzip.compress(client.get(page).content)) / 1024
        rows.append(
            at_most(
                f"{page.replace(session, '…')}, ms", p95, BUDGET_MS, f"p50 {p50:.0f}, first {cold:.0f}, {size:.0f} KiB"
            )
        )
    return rows


def _once(client: TestClient, page: str) -> tuple[float, int]:
    begun = time.process_time()
    reply = client.get(page)
    took = 1000 * (time.process_time() - begun)
    assert reply.status_code == 200, (page, reply.status_code)
    return took, len(reply.content)


if __name__ == "__main__":
    main()
