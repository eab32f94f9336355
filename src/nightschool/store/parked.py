"""Feedback that came before its target finds it here (law 5)."""

from __future__ import annotations

import sqlalchemy as sa

from nightschool.store.records import Record
from nightschool.store.schema import feedback
from nightschool.store.sessions import Place
from nightschool.types import TargetKind


def match_parked(conn: sa.Connection, tenant: str, record: Record, place: Place) -> int:
    """Give parked feedback to the exchange or session it waited for; how many."""
    keys: dict[TargetKind, set[str | None]] = {
        TargetKind.EXCHANGE: {record.id, record.upstream_id, record.caller.external_key},
        TargetKind.EXTERNAL_KEY: {record.caller.external_key},
        TargetKind.SESSION: {place.session_id, record.caller.session, record.id, record.upstream_id},
    }
    if place.is_new:
        keys[TargetKind.SESSION].add(record.caller.session_hint)
    names = sorted(name for name in set().union(*keys.values()) if name)
    columns = (feedback.c.id, feedback.c.target_kind, feedback.c.target_id)
    waiting = (feedback.c.tenant == tenant, feedback.c.state == "parked", feedback.c.target_id.in_(names))
    matched = 0
    for row in conn.execute(sa.select(*columns).where(*waiting)).all():
        kind = TargetKind(row.target_kind)
        if row.target_id not in keys[kind]:
            continue
        found = {"state": "matched", "session_id": place.session_id}
        if kind != TargetKind.SESSION:
            found["exchange_id"] = record.id
        conn.execute(sa.update(feedback).where(feedback.c.tenant == tenant, feedback.c.id == row.id).values(found))
        matched += 1
    return matched
