"""Runs of study: the list, and one run with its curves, config and ledger."""

from __future__ import annotations

import sqlalchemy as sa

from nightschool.dashboard.queries.scope import Scope, agents, names
from nightschool.dashboard.series import Points
from nightschool.jobs.alive import state_at
from nightschool.store.schema import adapters, datasets, ledger, run_metrics, runs, verdicts
from nightschool.types import Json

PAGE_ROWS = 50
METRIC_ROWS = 200_000


def run_list(conn: sa.Connection, scope: Scope) -> Json:
    """Runs, newest first, with the newest verdict on what each made. At most 5 queries."""
    labels = names(conn, scope.tenant)
    r = runs.c
    columns = (
        r.id, r.agent, r.objective, r.dataset_digest, r.parent_digest, r.adapter_digest, r.started_at, r.updated_at,
        r.finished_at, r.error,
    )  # fmt: skip
    state = state_at(scope.now).label("state")
    query = sa.select(*columns, state).where(r.tenant == scope.tenant)
    if scope.text("agent"):
        query = query.where(r.agent == scope.text("agent"))
    if scope.text("after"):
        query = query.where(r.id < scope.text("after"))
    found = conn.execute(query.order_by(r.id.desc()).limit(PAGE_ROWS + 1)).mappings().all()
    rows = [dict(row) for row in found[:PAGE_ROWS]]
    examined = _newest_verdicts(conn, scope.tenant, [row["adapter_digest"] for row in rows])
    for row in rows:
        row["adapter"] = labels.version(row["agent"], row["adapter_digest"])
        row["parent"] = labels.version(row["agent"], row["parent_digest"])
        row["verdict"] = examined.get(row["adapter_digest"])
    counted = sa.select(state, sa.func.count().label("number")).where(r.tenant == scope.tenant).group_by(state)
    if scope.text("agent"):
        counted = counted.where(r.agent == scope.text("agent"))
    return {
        "rows": rows,
        "next": rows[-1]["id"] if len(found) > PAGE_ROWS else None,
        "counts": {row.state: row.number for row in conn.execute(counted)},
        "agent": scope.text("agent"),
        "agents": agents(conn, scope.tenant),
    }


def run(conn: sa.Connection, scope: Scope, run_id: str) -> Json | None:
    """One run, or None when there is no such run. At most 8 queries."""
    columns = [column for column in runs.c if column.name not in ("tenant", "state")]
    query = sa.select(*columns, state_at(scope.now).label("state"))
    row = conn.execute(query.where(runs.c.tenant == scope.tenant, runs.c.id == run_id)).mappings().first()
    if row is None:
        return None
    labels = names(conn, scope.tenant)
    data: Json = dict(row)
    data["adapter"] = labels.version(data["agent"], _adapter(conn, scope.tenant, data))
    data["parent"] = labels.version(data["agent"], data["parent_digest"])
    digest = data["adapter"]["digest"] if data["adapter"] else None
    data["verdict"] = _newest_verdicts(conn, scope.tenant, [digest]).get(digest)
    data["dataset"] = _dataset(conn, scope.tenant, data["dataset_digest"])
    data["ledger"] = _ledger(conn, scope.tenant, run_id)
    data["metrics"] = _metrics(conn, scope.tenant, run_id)
    return data


def _adapter(conn: sa.Connection, tenant: str, data: Json) -> str | None:
    a = adapters.c
    return data["adapter_digest"] or conn.scalar(
        sa.select(a.digest).where(a.tenant == tenant, a.run_id == data["id"]).limit(1)
    )


def _newest_verdicts(conn: sa.Connection, tenant: str, digests: list[str | None]) -> dict[str | None, Json]:
    v = verdicts.c
    wanted = [digest for digest in digests if digest]
    query = sa.select(v.id, v.candidate, v.decision, v.sentence, v.created_at)
    query = query.where(v.tenant == tenant, v.candidate.in_(wanted)).order_by(v.created_at, v.id)
    return {row["candidate"]: dict(row) for row in conn.execute(query).mappings()}


def _dataset(conn: sa.Connection, tenant: str, digest: str | None) -> Json | None:
    d = datasets.c
    columns = (d.digest, d.objective, d.as_of, d.num_samples, d.summary)
    row = conn.execute(sa.select(*columns).where(d.tenant == tenant, d.digest == digest)).mappings().first()
    return None if row is None else dict(row)


def _ledger(conn: sa.Connection, tenant: str, run_id: str) -> list[Json]:
    """Exchanges and sessions by what became of them and why."""
    line = ledger.c
    query = sa.select(
        line.state,
        line.reason,
        sa.func.count().label("exchanges"),
        sa.func.count(line.session_id.distinct()).label("sessions"),
    ).where(line.tenant == tenant, line.run_id == run_id)
    rank = sa.case({"trained": 0, "held": 1}, value=line.state, else_=2)
    query = query.group_by(line.state, line.reason).order_by(rank, sa.desc("exchanges"), line.reason)
    return [dict(row) for row in conn.execute(query).mappings()]


def _metrics(conn: sa.Connection, tenant: str, run_id: str) -> dict[str, Points]:
    m = run_metrics.c
    query = sa.select(m.name, m.step, m.value).where(m.tenant == tenant, m.run_id == run_id)
    found: dict[str, Points] = {}
    for name, step, value in conn.execute(query.order_by(m.name, m.step).limit(METRIC_ROWS)):
        found.setdefault(name, []).append((step, value))
    return found
