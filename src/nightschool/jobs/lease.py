"""Jobs: enqueue once, lease, keep alive, finish or fail.

All functions but `load_job` write: call them inside `Store.write`. A worker holds a job as long as its
lease runs; whoever finds a lease run out may claim the job again. Owner and attempt together fence a worker
off that was thought dead: what it still reports changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from nightschool.errors import BusyError
from nightschool.store.failpoints import fail_point
from nightschool.store.ids import new_id
from nightschool.store.schema import jobs
from nightschool.types import Json

MAX_ATTEMPTS = 3
RETRY_DELAY_S = 5.0


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of long work. `attempts` counts the claims so far, this one included.

    `lease_until` of a queued job is the time before which it is not to be tried again.
    """

    id: str
    kind: str
    state: str  # queued | running | done | failed
    payload: Json
    attempts: int
    owner: str | None = None
    lease_until: float | None = None
    result: Json | None = None
    error: str | None = None


def enqueue(conn: sa.Connection, tenant: str, kind: str, key: str, payload: Json) -> str:
    """The id of the job called `key`; makes it when there is none. An existing one is left as it is."""
    query = sa.select(jobs.c.id).where(jobs.c.tenant == tenant, jobs.c.idempotency_key == key)
    known = conn.scalar(query)
    if known is not None:
        return known
    now = time.time()
    row = {
        "tenant": tenant,
        "id": new_id(),
        "kind": kind,
        "idempotency_key": key,
        "state": "queued",
        "payload": payload,
        "attempts": 0,
        "created_at": now,
        "updated_at": now,
    }
    conn.execute(sa.insert(jobs), row)
    return row["id"]


def claim(conn: sa.Connection, tenant: str, kinds: Sequence[str], owner: str, lease_s: float) -> Job | None:
    """Lease the oldest job of `kinds` that is due, or whose lease ran out; `None` when there is none.

    Edge: a job whose worker vanished on its last attempt fails here, and is not handed out.
    """
    now = time.time()
    mine = (jobs.c.tenant == tenant, jobs.c.kind.in_(kinds))
    due = sa.or_(jobs.c.lease_until.is_(None), jobs.c.lease_until <= now)
    spent = {"state": "failed", "error": "Every worker that took this job vanished.", "updated_at": now}
    lost = (jobs.c.state == "running", jobs.c.lease_until <= now, jobs.c.attempts >= MAX_ATTEMPTS)
    conn.execute(sa.update(jobs).where(*mine, *lost).values(spent))
    query = sa.select(jobs.c.id).where(*mine, due, jobs.c.state.in_(("queued", "running")))
    job_id = conn.scalar(query.order_by(jobs.c.created_at, jobs.c.id).limit(1))
    if job_id is None:
        return None
    leased = {
        "state": "running",
        "owner": owner,
        "attempts": jobs.c.attempts + 1,
        "lease_until": now + lease_s,
        "updated_at": now,
    }
    conn.execute(sa.update(jobs).where(jobs.c.tenant == tenant, jobs.c.id == job_id).values(leased))
    fail_point("job.leased")
    return load_job(conn, tenant, job_id)


def heartbeat(conn: sa.Connection, tenant: str, job: Job, lease_s: float) -> None:
    """Hold the job for `lease_s` more seconds from now. Raises BusyError when it is no longer ours."""
    _change(conn, tenant, job, {"lease_until": time.time() + lease_s})


def finish(conn: sa.Connection, tenant: str, job: Job, result: Json) -> None:
    """The job is done. Raises BusyError when it is no longer ours."""
    _change(conn, tenant, job, {"state": "done", "result": result, "error": None, "lease_until": None})


def fail(conn: sa.Connection, tenant: str, job: Job, error: str, retry: bool = True) -> None:
    """The job failed; with `retry` it is queued again, later each time, until `MAX_ATTEMPTS` are spent.

    Raises:
        BusyError: it is no longer ours.
    """
    if retry and job.attempts < MAX_ATTEMPTS:
        again = time.time() + RETRY_DELAY_S * 2 ** (job.attempts - 1)
        _change(conn, tenant, job, {"state": "queued", "error": error, "owner": None, "lease_until": again})
    else:
        _change(conn, tenant, job, {"state": "failed", "error": error, "lease_until": None})


def load_job(conn: sa.Connection, tenant: str, job_id: str) -> Job | None:
    names = Job.__slots__
    query = sa.select(*(jobs.c[name] for name in names)).where(jobs.c.tenant == tenant, jobs.c.id == job_id)
    row = conn.execute(query).mappings().first()
    return None if row is None else Job(**row)


def _change(conn: sa.Connection, tenant: str, job: Job, values: Json) -> None:
    held = (jobs.c.state == "running", jobs.c.owner == job.owner, jobs.c.attempts == job.attempts)
    query = sa.update(jobs).where(jobs.c.tenant == tenant, jobs.c.id == job.id, *held)
    if conn.execute(query.values({**values, "updated_at": time.time()})).rowcount == 0:
        raise BusyError(
            f"Job {job.id} is not held by {job.owner} any more.",
            "Its lease ran out and it was claimed again, or it has ended.",
            "nightschool status",
        )
