"""What was heard: every item of feedback, newest first, the parked ones by their own filter."""

from __future__ import annotations

import sqlalchemy as sa

from nightschool.dashboard.queries.outcomes import is_up
from nightschool.dashboard.queries.scope import Scope, agents, names
from nightschool.store.schema import exchanges, feedback, sessions
from nightschool.types import Json

PAGE_ROWS = 50
COUNT_CAP = 10_000
STATES = ("all", "up", "down", "text", "correction", "preference", "category", "outcome", "number", "parked")


def feedback_list(conn: sa.Connection, scope: Scope) -> Json:
    """One page of items with what they are about. At most 5 queries."""
    labels = names(conn, scope.tenant)
    state = scope.text("state") or "all"
    page = conn.execute(_page(scope, state)).mappings().all()
    rows = []
    for found in page[:PAGE_ROWS]:
        row = dict(found)
        row["version"] = labels.version(row["agent"], row.pop("policy_version"))
        rows.append(row)
    more = len(page) > PAGE_ROWS
    return {
        "rows": rows,
        "next": f"{rows[-1]['received_at']!r},{rows[-1]['id']}" if more else None,
        "state": state,
        "agent": scope.text("agent"),
        "agents": agents(conn, scope.tenant),
        "counts": _counts(conn, scope),
        "cap": COUNT_CAP,
    }


def _page(scope: Scope, state: str) -> sa.Select:
    f, s, e = feedback.c, sessions.c, exchanges.c
    about = feedback.outerjoin(sessions, sa.and_(s.tenant == f.tenant, s.id == f.session_id)).outerjoin(
        exchanges, sa.and_(e.tenant == f.tenant, e.id == f.exchange_id)
    )
    query = sa.select(
        f.id, f.kind, f.name, f.value, f.state, f.source, f.author, f.confidence, f.observed_at, f.received_at,
        f.target_kind, f.target_id, f.scale, f.origin, f.supersedes, f.turn, f.tool_call, f.tool_call_id,
        f.expires_at, f.session_id, f.exchange_id, s.agent, s.preview, s.first_at, s.purpose,
        sa.func.coalesce(e.policy_version, s.policy_version).label("policy_version"), e.started_at,
    ).select_from(about)  # fmt: skip
    query = query.where(f.tenant == scope.tenant, *_of_state(state))
    if scope.text("agent"):
        query = query.where(s.agent == scope.text("agent"))
    received, _, last_id = scope.text("after").partition(",")
    if last_id:
        try:
            at = float(received)
        except ValueError:
            at = float("inf")
        query = query.where(sa.or_(f.received_at < at, sa.and_(f.received_at == at, f.id < last_id)))
    return query.order_by(f.received_at.desc(), f.id.desc()).limit(PAGE_ROWS + 1)


def _of_state(state: str) -> list[sa.ColumnElement[bool]]:
    f = feedback.c
    if state == "parked":
        return [f.state == "parked"]
    if state in ("up", "down"):
        return [f.kind == "thumb", is_up() if state == "up" else sa.not_(is_up())]
    return [f.kind == state] if state in STATES and state != "all" else []


def _counts(conn: sa.Connection, scope: Scope) -> dict[str, int]:
    """Items of each filter; counting stops at `COUNT_CAP` of the newest."""
    f, s = feedback.c, sessions.c
    newest = sa.select(f.kind, f.state, sa.case((f.kind == "thumb", is_up()), else_=None).label("up"))
    newest = newest.where(f.tenant == scope.tenant)
    if scope.text("agent"):
        newest = newest.join(sessions, sa.and_(s.tenant == f.tenant, s.id == f.session_id))
        newest = newest.where(s.agent == scope.text("agent"))
    capped = newest.order_by(f.received_at.desc()).limit(COUNT_CAP + 1).subquery()
    c = capped.c
    query = sa.select(c.kind, c.state, c.up, sa.func.count()).group_by(c.kind, c.state, c.up)
    counts: dict[str, int] = dict.fromkeys(STATES, 0)
    for kind, state, up, number in conn.execute(query):
        counts["all"] += number
        counts["parked"] += number if state == "parked" else 0
        name = kind if up is None else "up" if up else "down"
        counts[name] = counts.get(name, 0) + number
    return counts
