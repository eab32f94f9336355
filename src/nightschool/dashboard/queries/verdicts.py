"""One verdict: the decision, its suites, and everything the statistics rest on."""

from __future__ import annotations

import sqlalchemy as sa

from nightschool.dashboard.queries.scope import Scope, names
from nightschool.store.schema import adapters, exams, sessions, verdicts
from nightschool.types import Json


def verdict(conn: sa.Connection, scope: Scope, verdict_id: str) -> Json | None:
    """The stored verdict, or None when there is no such verdict. At most 5 queries."""
    v, a, x, s = verdicts.c, adapters.c, exams.c, sessions.c
    row = conn.execute(sa.select(verdicts).where(v.tenant == scope.tenant, v.id == verdict_id)).mappings().first()
    if row is None:
        return None
    labels = names(conn, scope.tenant)
    data: Json = {key: value for key, value in row.items() if key != "tenant"}
    for side in ("candidate", "incumbent"):
        data[side] = labels.version(row["agent"], row[side])
    made_by = sa.select(a.run_id).where(a.tenant == scope.tenant, a.digest == row["candidate"])
    data["run_id"] = conn.scalar(made_by)
    exam = sa.select(x.id, x.state, x.opened_at, x.closed_at).where(x.tenant == scope.tenant, x.id == row["exam_id"])
    found = conn.execute(exam).mappings().first()
    data["exam"] = None if found is None else dict(found)
    taken = sa.select(sa.func.count()).where(s.tenant == scope.tenant, s.exam_id == row["exam_id"])
    data["exam_sessions"] = conn.scalar(taken) if row["exam_id"] else None
    return data
