"""What was heard: every item of feedback, newest first; what waits for a person, and what for its exchange."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from nightschool.dashboard.queries.outcomes import is_up
from nightschool.dashboard.queries.scope import Scope, agents, names
from nightschool.feedback.exporting import as_csv
from nightschool.feedback.inbox import is_done, is_said, is_unread, live_marks
from nightschool.store.schema import exchanges, feedback, sessions
from nightschool.types import Json, Purpose

PAGE_ROWS = 50
COUNT_CAP = 10_000
INBOX_CAP = 2_000  # of the newest items, how many are looked through for what waits
CSV_ROWS = 100_000
UNREAD, DONE, PARKED = "unread", "done", "parked"
KINDS = ("up", "down", "text", "correction", "preference", "category", "outcome", "number")
STATES = (UNREAD, DONE, "all", *KINDS, PARKED)


def feedback_list(conn: sa.Connection, scope: Scope) -> Json:
    """One page of items with what they are about. At most 6 queries."""
    labels = names(conn, scope.tenant)
    state = asked_state(scope)
    page = conn.execute(_page(scope, state)).mappings().all()
    rows = []
    for found in page[:PAGE_ROWS]:
        row = dict(found)
        row["version"] = labels.version(row["agent"], row.pop("policy_version"))
        rows.append(row)
    more = len(page) > PAGE_ROWS
    return {
        "rows": rows,
        "next": place_of(rows[-1]) if more else None,
        "state": state,
        "agent": scope.text("agent"),
        "agents": agents(conn, scope.tenant),
        "counts": _counts(conn, scope) | inbox_counts(conn, scope),
        "cap": COUNT_CAP,
        "inbox_cap": INBOX_CAP,
    }


def feedback_csv(conn: sa.Connection, scope: Scope) -> tuple[bytes, int]:
    """The items of a filter as CSV, newest first, and how many; at most `CSV_ROWS`."""
    query = _filtered(sa.select(feedback), scope, asked_state(scope)).limit(CSV_ROWS)
    rows = [dict(row) for row in conn.execute(query).mappings()]
    session_ids = [row["session_id"] for row in rows if row["session_id"] is not None]
    return as_csv(rows, live_marks(conn, scope.tenant, session_ids)), len(rows)


def asked_state(scope: Scope) -> str:
    return scope.text("state") if scope.text("state") in STATES else UNREAD


def place_of(row: Any) -> str:
    """Where an item stands in its list, as the URL says it."""
    return f"{row['received_at']!r},{row['id']}"


def neighbours(conn: sa.Connection, scope: Scope, item: Json, newer: int, older: int) -> tuple[list[Json], list[Json]]:
    """Items of the filter above and below `item` in its list, each newest first. Two queries."""
    f = feedback.c
    columns = sa.select(f.id, f.kind, f.name, f.value, f.scale, f.source, f.observed_at, f.received_at)
    query = _filtered(columns, scope, asked_state(scope), ordered=False)
    place = sa.tuple_(f.received_at, f.id)
    here = sa.tuple_(item["received_at"], item["id"])
    above = query.where(place > here).order_by(f.received_at, f.id).limit(newer)
    below = query.where(place < here).order_by(f.received_at.desc(), f.id.desc()).limit(older)
    found = [[dict(row) for row in conn.execute(part).mappings()] for part in (above, below)]
    return found[0][::-1], found[1]


def inbox_counts(conn: sa.Connection, scope: Scope) -> dict[str, int]:
    """How much waits for a person, and how much people handled, of the newest `INBOX_CAP` items. One query."""
    newest = _of_agent(sa.select(feedback), scope).where(is_said(feedback.c))
    c = newest.order_by(feedback.c.received_at.desc()).limit(INBOX_CAP).subquery().c
    flags = [sa.func.sum(sa.case((flag, 1), else_=0)) for flag in (is_unread(c), is_done(c))]
    counted = conn.execute(sa.select(*flags).where(c.tenant == scope.tenant)).one()
    return {name: number or 0 for name, number in zip((UNREAD, DONE), counted, strict=True)}


def _page(scope: Scope, state: str) -> sa.Select:
    f, s, e = feedback.c, sessions.c, exchanges.c
    query = sa.select(
        f.id, f.kind, f.name, f.value, f.state, f.source, f.author, f.confidence, f.observed_at, f.received_at,
        f.target_kind, f.target_id, f.scale, f.origin, f.supersedes, f.turn, f.tool_call, f.tool_call_id,
        f.expires_at, f.session_id, f.exchange_id, s.agent, s.preview, s.first_at, s.purpose,
        sa.func.coalesce(e.policy_version, s.policy_version).label("policy_version"), e.started_at,
    )  # fmt: skip
    query = _filtered(query, scope, state, with_exchange=True)
    received, _, last_id = scope.text("after").partition(",")
    if last_id:
        try:
            at = float(received)
        except ValueError:
            at = float("inf")
        query = query.where(sa.or_(f.received_at < at, sa.and_(f.received_at == at, f.id < last_id)))
    return query.limit(PAGE_ROWS + 1)


def _filtered(
    query: sa.Select, scope: Scope, state: str, ordered: bool = True, with_exchange: bool = False
) -> sa.Select:
    """Rows of one filter, newest first."""
    f, s, e = feedback.c, sessions.c, exchanges.c
    about = feedback.outerjoin(sessions, sa.and_(s.tenant == f.tenant, s.id == f.session_id))
    if with_exchange:
        about = about.outerjoin(exchanges, sa.and_(e.tenant == f.tenant, e.id == f.exchange_id))
    query = query.select_from(about).where(f.tenant == scope.tenant, *_of_state(state))
    if scope.text("agent"):
        query = query.where(s.agent == scope.text("agent"))
    return query.order_by(f.received_at.desc(), f.id.desc()) if ordered else query


def _of_agent(query: sa.Select, scope: Scope) -> sa.Select:
    f, s = feedback.c, sessions.c
    query = query.where(f.tenant == scope.tenant)
    if scope.text("agent"):
        query = query.join(sessions, sa.and_(s.tenant == f.tenant, s.id == f.session_id))
        query = query.where(s.agent == scope.text("agent"))
    return query


def _of_state(state: str) -> list[sa.ColumnElement[bool]]:
    f, s = feedback.c, sessions.c
    if state == UNREAD:
        return [is_unread(f), s.purpose == Purpose.SERVE.value]
    if state == DONE:
        return [is_said(f), is_done(f)]
    if state == PARKED:
        return [f.state == "parked"]
    if state in ("up", "down"):
        return [f.kind == "thumb", is_up() if state == "up" else sa.not_(is_up())]
    return [is_said(f), f.kind == state] if state in KINDS else [is_said(f)]


def _counts(conn: sa.Connection, scope: Scope) -> dict[str, int]:
    """Items of each filter; counting stops at `COUNT_CAP` of the newest."""
    f = feedback.c
    newest = sa.select(f.kind, f.state, sa.case((f.kind == "thumb", is_up()), else_=None).label("up"))
    newest = _of_agent(newest, scope).where(is_said(f))
    capped = newest.order_by(f.received_at.desc()).limit(COUNT_CAP + 1).subquery()
    c = capped.c
    query = sa.select(c.kind, c.state, c.up, sa.func.count()).group_by(c.kind, c.state, c.up)
    counts: dict[str, int] = dict.fromkeys(STATES, 0)
    for kind, state, up, number in conn.execute(query):
        counts["all"] += number
        counts[PARKED] += number if state == "parked" else 0
        name = kind if up is None else "up" if up else "down"
        counts[name] = counts.get(name, 0) + number
    return counts
