"""Feedback finds its target when the target arrives: what waited, and what a later arrival means better (law 5)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from nightschool.store.blobs import in_parts
from nightschool.store.prepared import Lookup
from nightschool.store.records import Record
from nightschool.store.schema import exchanges, feedback, sessions
from nightschool.store.sessions import Place
from nightschool.store.targets import LAST, Target, resolve
from nightschool.types import TargetKind

# Feedback of an administrator has keys that begin so: nobody else can occupy, or pass for, one of them.
ADMIN_KEYS = "admin:"

_waits = sa.or_(feedback.c.state == "parked", feedback.c.state == "matched")
_named = Lookup(feedback.c.target_id, (feedback.c.target_id,), _waits)
_session_names = Lookup(sessions.c.id, (sessions.c.external_key,))


def match_feedback(conn: sa.Connection, tenant: str, arrived: Sequence[tuple[Record, Place]]) -> int:
    """Settle the feedback that names one of these exchanges or their sessions; how many rows changed.

    Call it in the write that stored them. Parked feedback is given to its target unless it has expired;
    matched feedback moves where its name now means something else.
    """
    changed = 0
    earliest = min((record.timing.started_at for record, _ in arrived), default=0.0)
    here = {record.id for record, _ in arrived} | {place.session_id for _, place in arrived}
    if any(place.replaced for _, place in arrived):  # a retry took a turn over: turns are counted anew
        earliest = 0.0
    names = {row.target_id for row in _named.rows(conn, tenant, sorted(_names(conn, tenant, arrived)))}
    for some in in_parts(sorted(names)):  # mostly none
        for row in conn.execute(_waiting(tenant, some, time.time())).all():
            if row.state == "parked" or not _stands(row, here, earliest):
                changed += _settle(conn, tenant, row)
    return changed


def target_of(row: Any) -> Target:
    """What a row of the feedback table names. A call is named by its id where the sender gave one."""
    call = row.tool_call_id if row.tool_call_id is not None else row.tool_call
    return Target(TargetKind(row.target_kind), row.target_id, row.turn, call)


def _names(conn: sa.Connection, tenant: str, arrived: Sequence[tuple[Record, Place]]) -> set[str]:
    """Everything by which the exchanges and their sessions are known."""
    names = {
        name
        for record, place in arrived
        for name in (
            record.id,
            record.upstream_id,
            record.caller.external_key,
            record.caller.session,
            record.caller.session_hint if place.is_new else None,
            place.session_id,
        )
        if name
    }
    joined = {place.session_id for record, place in arrived if not place.is_new and not record.caller.session}
    found = _session_names.rows(conn, tenant, sorted(joined))
    names |= {row.external_key for row in found if row.external_key}
    return names


def _waiting(tenant: str, names: Sequence[str], now: float) -> sa.Select[Any]:
    f, x = feedback.c, exchanges.c
    own = sa.and_(x.tenant == f.tenant, x.id == f.exchange_id)
    inside = sa.and_(sessions.c.tenant == f.tenant, sessions.c.id == f.session_id)
    in_time = sa.or_(f.state == "matched", f.expires_at.is_(None), f.expires_at > now)
    return (
        sa.select(feedback, x.started_at, sessions.c.first_at)
        .select_from(feedback.outerjoin(exchanges, own).outerjoin(sessions, inside))
        .where(f.tenant == tenant, _waits, f.target_id.in_(names), in_time)
    )


def _stands(row: Any, here: set[str], earliest: float) -> bool:
    """Whether matched feedback surely keeps its target: nearly all of it does, and needs no second look."""
    if row.turn is None and row.target_kind != TargetKind.SESSION.value:
        return row.exchange_id in here
    if row.session_id not in here or earliest <= row.first_at:  # another session of that name, or a new beginning
        return False
    if row.turn is None:
        return True
    return earliest > (row.observed_at if row.turn == LAST else row.started_at)


def _settle(conn: sa.Connection, tenant: str, row: Any) -> int:
    """Write down what the row's name means now; 1 when that is news."""
    found = resolve(conn, tenant, target_of(row), row.observed_at, row.idempotency_key.startswith(ADMIN_KEYS))
    values: dict[str, Any] = {"state": "parked", "exchange_id": None, "session_id": None}
    if found is not None and found.problem is None:
        values = {"state": "matched", "exchange_id": found.exchange_id, "session_id": found.session_id}
        if found.tool_call is not None:
            values["tool_call"] = found.tool_call
    if all(row._mapping[name] == value for name, value in values.items()):
        return 0
    conn.execute(sa.update(feedback).where(feedback.c.tenant == tenant, feedback.c.id == row.id).values(values))
    return 1
