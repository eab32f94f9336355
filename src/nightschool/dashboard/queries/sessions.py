"""The list of sessions: filters from the URL, keyset paging, outcome and ledger of the rows on the page."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from nightschool.dashboard.formatting import DAY_S
from nightschool.dashboard.marks import one_line
from nightschool.dashboard.queries.outcomes import has_thumb, outcome_of, thumb_scores
from nightschool.dashboard.queries.scope import Scope, agents, names
from nightschool.store.schema import exchanges, feedback, ledger, sessions
from nightschool.types import Json

PAGE_ROWS = 50
COUNT_CAP = 10_000
FILTERS = ("q", "agent", "release", "outcome", "has", "from", "to", "exam", "run", "ledger", "reason")


def session_list(conn: sa.Connection, scope: Scope) -> Json:
    """One page, newest first, and how many match (counting stops at `COUNT_CAP`). At most 9 queries."""
    labels, known = names(conn, scope.tenant), agents(conn, scope.tenant)
    matching = _matching(scope)
    if len(known) == 1 and not scope.text("exam"):  # the same rows, and the index gives them in order
        matching = matching.where(sessions.c.agent == known[0])
    page = conn.execute(_page(matching, scope)).mappings().all()
    rows = [dict(row) for row in page[:PAGE_ROWS]]
    ids = [row["id"] for row in rows]
    outcomes = _outcomes(conn, scope.tenant, ids)
    marks, states = _marks(conn, scope.tenant, ids), _ledger(conn, scope.tenant, ids)
    for row in rows:
        row["version"] = labels.version(row["agent"], row.pop("policy_version"))
        row["preview"] = one_line(row["preview"])
        row["outcome"] = outcomes.get(row["id"], {"outcome": "silent", "at": None})
        row["feedback"] = marks.get(row["id"], [])
        row["ledger"] = states.get(row["id"])
    more = len(page) > PAGE_ROWS
    return {
        "rows": rows,
        "next": f"{rows[-1]['last_at']!r},{rows[-1]['id']}" if more else None,
        "counts": _kept_counts(conn, matching, scope),
        "cap": COUNT_CAP,
        "filters": {name: scope.text(name) for name in FILTERS if scope.text(name)},
        "agents": known,
        "releases": [
            {"agent": agent, "digest": digest, "label": f"v{number}"}
            for (agent, digest), number in sorted(labels.numbers.items(), key=lambda item: (item[0][0], item[1]))
        ],
        "newer": _newer(conn, matching, scope),
    }


def _matching(scope: Scope) -> sa.Select:
    """The sessions that the URL's filters ask for, exams only when an exam is named."""
    s = sessions.c
    columns = (s.id, s.agent, s.preview, s.policy_version, s.num_exchanges, s.first_at, s.last_at, s.purpose)
    query = sa.select(*columns).where(s.tenant == scope.tenant)
    exam = scope.text("exam")
    query = query.where(s.exam_id == exam) if exam else query.where(s.purpose != "exam")
    for name, column in (("agent", s.agent), ("release", s.policy_version)):
        if scope.text(name):
            query = query.where(column == scope.text(name))
    if scope.text("q"):
        wanted = scope.text("q")
        query = query.where(
            sa.or_(s.preview.icontains(wanted, autoescape=True), s.id == wanted, s.external_key == wanted)
        )
    start, end = _day(scope.text("from")), _day(scope.text("to"))
    if start is not None:
        query = query.where(s.last_at >= start)
    if end is not None:
        query = query.where(s.last_at < end + DAY_S)
    return _by_ledger(_by_judgement(query, scope), scope)


def _by_judgement(query: sa.Select, scope: Scope) -> sa.Select:
    s = sessions.c
    outcome = scope.text("outcome")
    if outcome in ("judged", "silent"):
        query = query.where(has_thumb(scope.tenant) if outcome == "judged" else ~has_thumb(scope.tenant))
    elif outcome in ("up", "down"):
        scores = thumb_scores(scope.tenant)
        ended = scores.c.score > 0 if outcome == "up" else scores.c.score <= 0
        query = query.where(s.id.in_(sa.select(scores.c.session_id).where(ended)))
    has = scope.text("has")
    if has == "error":
        broken = sa.exists().where(
            exchanges.c.tenant == scope.tenant, exchanges.c.session_id == s.id, exchanges.c.status != "ok"
        )
        query = query.where(broken)
    elif has:
        said = sa.exists().where(
            feedback.c.tenant == scope.tenant, feedback.c.session_id == s.id, feedback.c.kind == has
        )
        query = query.where(said)
    return query


def _by_ledger(query: sa.Select, scope: Scope) -> sa.Select:
    run, state, reason = scope.text("run"), scope.text("ledger"), scope.text("reason")
    if not (run or state or reason):
        return query
    entered = sa.select(ledger.c.session_id).where(ledger.c.tenant == scope.tenant)
    for value, column in ((run, ledger.c.run_id), (state, ledger.c.state), (reason, ledger.c.reason)):
        if value:
            entered = entered.where(column == value)
    return query.where(sessions.c.id.in_(entered))


def _page(matching: sa.Select, scope: Scope) -> sa.Select:
    s = sessions.c
    last_at, _, last_id = scope.text("after").partition(",")
    if last_id:
        try:
            at = float(last_at)
        except ValueError:
            at = float("inf")
        matching = matching.where(sa.or_(s.last_at < at, sa.and_(s.last_at == at, s.id < last_id)))
    return matching.order_by(s.last_at.desc(), s.id.desc()).limit(PAGE_ROWS + 1)


def _kept_counts(conn: sa.Connection, matching: sa.Select, scope: Scope) -> Json:
    asked = tuple((name, scope.text(name)) for name in FILTERS)
    return scope.counts.get(("sessions", scope.tenant, asked), scope.now, lambda: _counts(conn, matching, scope.tenant))


def _counts(conn: sa.Connection, matching: sa.Select, tenant: str) -> Json:
    capped = matching.order_by(sessions.c.last_at.desc()).limit(COUNT_CAP + 1).cte("matching")
    scores = thumb_scores(tenant, sa.select(capped.c.id))
    up, down = scores.c.score > 0, scores.c.score <= 0
    total = sa.select(sa.func.count()).select_from(capped).scalar_subquery()
    row = conn.execute(
        sa.select(total, sa.func.sum(sa.case((up, 1), else_=0)), sa.func.sum(sa.case((down, 1), else_=0))).select_from(
            scores
        )
    ).one()
    total, ups, downs = row[0], int(row[1] or 0), int(row[2] or 0)
    return {"total": total, "up": ups, "down": downs, "silent": total - ups - downs}


def _newer(conn: sa.Connection, matching: sa.Select, scope: Scope) -> int:
    """How many sessions moved since the page was drawn (`seen` is sent by the poller)."""
    try:
        seen = float(scope.text("seen"))
    except ValueError:
        return 0
    newer = matching.where(sessions.c.last_at > seen).limit(COUNT_CAP).subquery()
    return conn.scalar(sa.select(sa.func.count()).select_from(newer)) or 0


def _outcomes(conn: sa.Connection, tenant: str, ids: list[str]) -> dict[str, Json]:
    scores = thumb_scores(tenant, ids)
    query = sa.select(scores.c.session_id, scores.c.score, scores.c.last_at)
    return {session: {"outcome": outcome_of(score), "at": at} for session, score, at in conn.execute(query)}


def _marks(conn: sa.Connection, tenant: str, ids: list[str]) -> dict[str, list[Json]]:
    """Kinds of feedback that each session has, thumbs aside: they are its outcome."""
    f = feedback.c
    query = sa.select(f.session_id, f.kind, sa.func.count()).where(
        f.tenant == tenant, f.session_id.in_(ids), f.kind != "thumb"
    )
    found: dict[str, list[Json]] = {}
    for session, kind, number in conn.execute(query.group_by(f.session_id, f.kind).order_by(f.kind)):
        found.setdefault(session, []).append({"kind": kind, "count": number})
    return found


def _ledger(conn: sa.Connection, tenant: str, ids: list[str]) -> dict[str, Json]:
    """What the newest run did with each session: trained before held before excluded."""
    e, line = exchanges.c, ledger.c
    query = (
        sa.select(e.session_id, line.run_id, line.state, line.reason)
        .join(ledger, sa.and_(line.tenant == e.tenant, line.exchange_id == e.id))
        .where(e.tenant == tenant, e.session_id.in_(ids))
        .distinct()
    )
    rank = {"trained": 2, "held": 1, "excluded": 0}
    newest: dict[str, tuple[str, int, Json]] = {}
    for session, run, state, reason in conn.execute(query):
        entry = (run, rank.get(state, -1), {"run": run, "state": state, "reason": reason})
        if session not in newest or entry[:2] > newest[session][:2]:
            newest[session] = entry
    return {session: entry[2] for session, entry in newest.items()}


def _day(text: str) -> float | None:
    """Local midnight of an ISO date; None when it is not one."""
    try:
        return datetime.fromisoformat(text).astimezone().timestamp() if text else None
    except (ValueError, OverflowError, OSError):
        return None
