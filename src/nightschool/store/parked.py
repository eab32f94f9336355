"""Feedback that came before its target finds it here (law 5)."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from nightschool.store.prepared import Lookup
from nightschool.store.records import Record
from nightschool.store.schema import feedback
from nightschool.store.sessions import Place
from nightschool.types import TargetKind

_waiting = Lookup(feedback.c.target_id, (feedback.c.target_id,), feedback.c.state == "parked")


def match_parked_many(conn: sa.Connection, tenant: str, records: Sequence[Record], places: Sequence[Place]) -> int:
    """Give parked feedback to those of the exchanges, or their sessions, that it waited for; how many."""
    names = [_names(record, place) for record, place in zip(records, places, strict=True)]
    found = {row.target_id for row in _waiting.rows(conn, tenant, sorted(set().union(*names)))}
    together = zip(records, places, names, strict=True)
    return sum(match_parked(conn, tenant, record, place) for record, place, own in together if found & own)


def match_parked(conn: sa.Connection, tenant: str, record: Record, place: Place) -> int:
    """Give parked feedback to the exchange or session it waited for; how many."""
    keys = _keys(record, place)
    names = sorted(_names(record, place))
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


def _keys(record: Record, place: Place) -> dict[TargetKind, set[str | None]]:
    """What this exchange and its session are called, by the kind of target that may call them so."""
    hint = record.caller.session_hint if place.is_new else None
    return {
        TargetKind.EXCHANGE: {record.id, record.upstream_id, record.caller.external_key},
        TargetKind.EXTERNAL_KEY: {record.caller.external_key},
        TargetKind.SESSION: {place.session_id, record.caller.session, record.id, record.upstream_id, hint},
    }


def _names(record: Record, place: Place) -> set[str]:
    return {name for name in set().union(*_keys(record, place).values()) if name}
