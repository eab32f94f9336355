"""What the run that made a candidate saw of it while it studied: part of a verdict, never a vote in it."""

from __future__ import annotations

import sqlalchemy as sa

from nightschool.store.schema import runs
from nightschool.types import Json

TOLD = ("teacher_audit", "watch")


def study_of(conn: sa.Connection, tenant: str, candidate: str) -> Json | None:
    """The audit of the run's teacher and what its watch saw; `None` where nobody distilled."""
    r = runs.c
    query = sa.select(r.id, r.summary).where(r.tenant == tenant, r.adapter_digest == candidate, r.state == "done")
    row = conn.execute(query.order_by(r.started_at.desc()).limit(1)).first()
    if row is None or not any(name in (row.summary or {}) for name in TOLD):
        return None
    return {"run": row.id, **{name: row.summary[name] for name in TOLD if name in row.summary}}


def warning(study: Json | None) -> str:
    """What the watch has against a candidate, as the end of a verdict's sentence."""
    watch = (study or {}).get("watch") or {}
    if watch.get("stopped"):
        return " Its run was stopped by the watch, and ends before what it saw."
    if watch.get("alarms"):
        signs = next(reversed(watch["alarms"].values()))
        return f" While it studied: {'; '.join(signs)}."
    return ""
