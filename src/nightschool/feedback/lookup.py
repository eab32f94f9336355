"""Looking at feedback: the history of a target, what holds of it now, and what waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from nightschool.errors import InputError
from nightschool.feedback.record import current_view, feedback_value
from nightschool.store.exchanges import find_exchange, find_session
from nightschool.store.schema import feedback as table
from nightschool.types import Json, TargetKind

MAX_ROWS = 1000
STATES = ("matched", "parked", "expired", "refused")
NAMED_BY = ("target", "exchange", "session", "external_key")
HIDDEN = ("tenant", "idempotency_key")


def find_history(conn: sa.Connection, tenant: str, name: str, named_by: str = "target") -> list[sa.Row]:
    """All that was ever said about what is called `name`, oldest first, at most the newest `MAX_ROWS`.

    `named_by` tells what the name is of; `target` takes any. A session's history holds that of its exchanges.
    """
    t = table.c
    about: list[sa.ColumnElement[bool]] = []
    if named_by in ("target", "session"):
        session_id = find_session(conn, tenant, name)
        about.append(sa.and_(t.target_id == name, sa.or_(t.target_kind == TargetKind.SESSION, t.turn.is_not(None))))
        about += [t.session_id == session_id] if session_id else []
    if named_by in ("target", "exchange", "external_key"):
        exchange_id = find_exchange(conn, tenant, name)
        about.append(sa.and_(t.target_id == name, t.target_kind != TargetKind.SESSION, t.turn.is_(None)))
        about += [t.exchange_id == exchange_id] if exchange_id else []
    return _newest(conn, sa.select(table).where(t.tenant == tenant, sa.or_(*about)), MAX_ROWS)


def list_feedback(
    conn: sa.Connection, tenant: str, state: str | None, now: float, limit: int = MAX_ROWS
) -> list[sa.Row]:
    """The newest items, oldest first; `state` is one of `STATES`. Raises: InputError."""
    t = table.c
    query = sa.select(table).where(t.tenant == tenant)
    if state is not None:
        if state not in STATES:
            raise InputError("Nothing was looked up.", f"A state is one of {', '.join(STATES)}.", "GET ?state=parked")
        query = query.where(t.state == ("parked" if state == "expired" else state))
    if state == "expired":
        query = query.where(t.expires_at <= now)
    if state == "parked":
        query = query.where(sa.or_(t.expires_at.is_(None), t.expires_at > now))
    return _newest(conn, query, limit)


def shown(rows: Sequence[Any], now: float) -> list[Json]:
    """Rows as JSON, each with its state as of `now` and whether it is part of the current view."""
    holding = {item.id for item in current_view(feedback_value(row) for row in rows if row.state != "refused")}
    found = []
    for row in rows:
        value = {name: item for name, item in row._mapping.items() if name not in HIDDEN}
        if row.state != "parked":
            value["expires_at"] = None
        elif row.expires_at is not None and row.expires_at <= now:
            value["state"] = "expired"
        found.append({**value, "current": row.id in holding})
    return found


def _newest(conn: sa.Connection, query: sa.Select[Any], limit: int) -> list[sa.Row]:
    rows = conn.execute(query.order_by(table.c.received_at.desc(), table.c.id.desc()).limit(limit)).all()
    return list(reversed(rows))
