"""What feedback speaks about: from the name its sender gave to the exchange, session or tool call.

A name may fit several things (a ticket number, a session's name used twice). It then means the newest that had
begun when the judgement was observed, else the oldest: a rule that depends on what is stored alone, so that the
order in which feedback and exchanges arrive changes nothing (`parked.py` asks again whenever an exchange arrives).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from nightschool.store.schema import blobs, choices, exchanges, messages, sessions
from nightschool.store.tree import with_content
from nightschool.types import Branch, Purpose, TargetKind

LAST = -1  # the number of a session's newest turn
UNNAMED: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """A target as its sender names it.

    `id` names an exchange, or the session where `turn` counts its turns (1 is the first, `LAST` the newest).
    `tool_call` is the position of a call in the reply (0 is the first), or the call's own id.
    """

    kind: TargetKind
    id: str
    turn: int | None = None
    tool_call: int | str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """What a name means. `exchange_id` is `None` for a session, `tool_call` is a position.

    `is_alone` is False where the name fits several things. `problem` says why there can be no such target.
    """

    exchange_id: str | None
    session_id: str
    purpose: str
    tool_call: int | None = None
    is_alone: bool = True
    problem: str | None = None


def resolve(conn: sa.Connection, tenant: str, target: Target, at: float, admin: bool) -> Found | None:
    """What `target` means to a judgement observed at `at`; `None` when it is not stored yet.

    A session is also known by its exchanges' ids. Without the admin's right a name means service before exams.
    """
    x = exchanges.c
    if target.turn is not None:
        found = _turn(conn, tenant, target, at, admin)
    elif target.kind == TargetKind.SESSION:
        found = _session(conn, tenant, target.id, at, admin)
    elif target.kind == TargetKind.EXTERNAL_KEY:
        found = _exchange(conn, tenant, target.id, (x.external_key,), at, admin)
    else:
        found = _exchange(conn, tenant, target.id, (x.id, x.upstream_id, x.external_key), at, admin)
    if found is None or target.tool_call is None:
        return found
    return _tool_call(conn, tenant, found, target.tool_call)


def _session(conn: sa.Connection, tenant: str, name: str, at: float, admin: bool) -> Found | None:
    s = sessions.c
    query = sa.select(s.id, s.purpose).where(s.tenant == tenant, sa.or_(s.id == name, s.external_key == name))
    rows = conn.execute(query.order_by(*_order(sessions, s.first_at, at, admin)).limit(2)).all()
    if rows:
        return Found(None, rows[0].id, rows[0].purpose, is_alone=len(rows) == 1)
    x = exchanges.c
    inside = _exchange(conn, tenant, name, (x.id, x.upstream_id), at, admin)
    return None if inside is None else Found(None, inside.session_id, inside.purpose, is_alone=inside.is_alone)


def _exchange(
    conn: sa.Connection, tenant: str, name: str, columns: Sequence[sa.Column[Any]], at: float, admin: bool
) -> Found | None:
    x = exchanges.c
    for column in columns:
        query = sa.select(x.id, x.session_id, x.purpose).where(x.tenant == tenant, column == name)
        rows = conn.execute(query.order_by(*_order(exchanges, x.started_at, at, admin)).limit(2)).all()
        if rows:
            return Found(rows[0].id, rows[0].session_id, rows[0].purpose, is_alone=len(rows) == 1)
    return None


def _order(table: sa.Table, begun: sa.Column[Any], at: float, admin: bool) -> tuple[Any, ...]:
    """Service first; of what had begun by `at` the newest, else the oldest."""
    nearest = (sa.case((begun > at, 1), else_=0), sa.func.abs(begun - at), table.c.id)
    return nearest if admin else (sa.case((table.c.purpose == Purpose.EXAM.value, 1), else_=0), *nearest)


def _turn(conn: sa.Connection, tenant: str, target: Target, at: float, admin: bool) -> Found | None:
    """The exchange that is a session's turn: replies of its main branch, in the order in which they began."""
    session = _session(conn, tenant, target.id, at, admin)
    if session is None or target.turn is None:
        return None
    x = exchanges.c
    query = sa.select(x.id).where(
        x.tenant == tenant, x.session_id == session.session_id, x.branch == Branch.MAIN.value, x.status != "error"
    )
    if target.turn == LAST:
        query = query.where(x.started_at <= at).order_by(x.started_at.desc(), x.id.desc())
    else:
        query = query.order_by(x.started_at, x.id).offset(target.turn - 1)
    exchange_id = conn.scalar(query.limit(1))
    if exchange_id is None:
        return None
    return Found(exchange_id, session.session_id, session.purpose, is_alone=session.is_alone)


def _tool_call(conn: sa.Connection, tenant: str, found: Found, asked: int | str) -> Found:
    """Add the call's position. Ids are reused in the wild, so an id only counts inside one reply."""
    ids = _call_ids(conn, tenant, str(found.exchange_id))
    places = [asked] if isinstance(asked, int) else [place for place, name in enumerate(ids) if name == asked]
    problem = None
    if len(places) > 1:
        problem = f"{len(places)} tool calls of the reply have the id {asked!r}: name one by its position"
    elif not places or not 0 <= places[0] < len(ids):
        problem = f"the reply has {len(ids)} tool calls, and none is {asked!r}"
    return Found(
        found.exchange_id,
        found.session_id,
        found.purpose,
        tool_call=None if problem else places[0],
        is_alone=found.is_alone and len(places) <= 1,
        problem=problem,
    )


def _call_ids(conn: sa.Connection, tenant: str, exchange_id: str) -> tuple[Any, ...]:
    """The ids of the tool calls in an exchange's first reply, in order; whatever stands there as an id."""
    c, m = choices.c, messages.c
    data, blob = with_content(tenant)
    node = sa.and_(m.tenant == c.tenant, m.hash == c.message_hash)
    query = sa.select(data).select_from(choices.join(messages, node).outerjoin(blobs, blob))
    found = conn.scalar(query.where(c.tenant == tenant, c.exchange_id == exchange_id).order_by(c.index).limit(1))
    if found is None:
        return UNNAMED
    message = json.loads(found)
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not isinstance(calls, list):
        return UNNAMED
    return tuple(call.get("id") if isinstance(call, dict) else None for call in calls)
