"""The overview: is it working, is it getting better, what was heard, what happened last, what is to decide."""

from __future__ import annotations

import statistics

import sqlalchemy as sa

from nightschool.dashboard.formatting import DAY_S
from nightschool.dashboard.queries.material import material
from nightschool.dashboard.queries.outcomes import has_thumb, is_up, thumb_scores
from nightschool.dashboard.queries.scope import Names, Scope, names
from nightschool.gate.statistics import newcombe, wilson
from nightschool.jobs.alive import state_at
from nightschool.store.schema import exchanges, feedback, releases, runs, sessions, verdicts
from nightschool.types import Json

NEEDED_JUDGED = 30  # below that a share is drawn hollow and says "not enough data"
HEARD_DAYS = 30
OVERHEAD_SAMPLE = 500
SIDE = 0.025  # on each side of a 95 % interval


def overview(conn: sa.Connection, scope: Scope, agent: str | None, known: list[str]) -> Json:
    """Everything about one of the `known` agents, the first by default. At most 11 queries.

    Before the first release `material` tells what is recorded is good for; then there is nothing to compare yet.
    """
    agent = agent or (known[0] if known else scope.facts.get("agent"))
    data: Json = {"agent": agent, "agents": known, "needed_judged": NEEDED_JUDGED}
    if agent not in known:
        return {**data, "releases": [], "recording": None}
    labels = names(conn, scope.tenant)
    released = any(owner == agent for owner, _ in labels.numbers)
    moves = _moves(conn, scope.tenant, agent) if released else []
    data["serving"] = _serving(moves, labels, agent)
    data["releases"] = success_by_release(conn, scope, agent, labels)
    data["recording"] = _recording(conn, scope, agent)
    data["heard"] = _heard(conn, scope, agent)
    data["material"] = None if released else material(conn, scope, agent)
    run, examined = _last_run(conn, scope, agent), _verdicts(conn, scope, agent, labels) if released else []
    data["last_night"] = {"run": run, "verdict": examined[0] if examined else None}
    data["parked"] = _parked(conn, scope.tenant)
    data["decisions"] = _decisions(run, examined)
    return data


def agent_rows(conn: sa.Connection, scope: Scope, known: list[str]) -> Json:
    """One row for each agent when there are several. Two queries."""
    labels = names(conn, scope.tenant)
    counted = success_counts(conn, scope.tenant, None)
    rows = []
    for agent in known:
        releases_ = success_rows(counted, labels, agent)
        serving = next((row for row in releases_ if row["version"]["serving"]), None)
        rows.append({"agent": agent, "serving": labels.version(agent, labels.serving.get(agent)), "success": serving})
    return {"agents": known, "rows": rows}


def success_by_release(conn: sa.Connection, scope: Scope, agent: str, labels: Names) -> list[Json]:
    """Share of judged sessions with a thumb up, by the version that served them, with its Wilson interval.

    Exam sessions are left out. `since_first` compares with the first released version (Newcombe).
    """
    return success_rows(success_counts(conn, scope.tenant, agent), labels, agent)


def success_counts(conn: sa.Connection, tenant: str, agent: str | None) -> dict[tuple[str, str], tuple[int, int]]:
    """(judged, up) of each agent and version. One query."""
    s = sessions.c
    scores = thumb_scores(tenant)
    up = sa.func.sum(sa.case((scores.c.score > 0, 1), else_=0))
    query = (
        sa.select(s.agent, s.policy_version, sa.func.count(), up)
        .join(scores, scores.c.session_id == s.id)
        .where(s.tenant == tenant, s.purpose != "exam")
        .group_by(s.agent, s.policy_version)
    )
    if agent is not None:
        query = query.where(s.agent == agent)
    return {(owner, digest): (judged, int(ups)) for owner, digest, judged, ups in conn.execute(query)}


def success_rows(counts: dict[tuple[str, str], tuple[int, int]], labels: Names, agent: str) -> list[Json]:
    """Rows in release order, unreleased versions first; those released but not judged yet are kept, empty."""
    digests = {digest for owner, digest in counts if owner == agent}
    digests |= {digest for owner, digest in labels.numbers if owner == agent}
    ordered = sorted(digests, key=lambda digest: (labels.numbers.get((agent, digest), 0), digest))
    rows: list[Json] = []
    first: tuple[int, int] | None = None
    for digest in ordered:
        judged, up = counts.get((agent, digest), (0, 0))
        row: Json = {
            "version": labels.version(agent, digest),
            "judged": judged,
            "up": up,
            "enough": judged >= NEEDED_JUDGED,
            "share": None,
            "since_first": None,
        }
        if judged:
            low, high = wilson(up, judged, SIDE)
            row["share"] = {"estimate": up / judged, "low": low, "high": high}
        if first is not None and judged:
            low, high = newcombe((up, judged), first, SIDE)
            row["since_first"] = {"estimate": up / judged - first[0] / first[1], "low": low, "high": high}
        elif judged and (agent, digest) in labels.numbers:
            first = (up, judged)
        rows.append(row)
    return rows


def _moves(conn: sa.Connection, tenant: str, agent: str) -> list[sa.Row]:
    r = releases.c
    query = sa.select(r.digest, r.number, r.at, r.kind, r.by).where(r.tenant == tenant, r.agent == agent)
    return list(conn.execute(query.order_by(r.at.desc(), r.id.desc()).limit(1)))


def _serving(moves: list[sa.Row], labels: Names, agent: str) -> Json | None:
    if not moves:
        return None
    move = moves[0]
    return {**(labels.version(agent, move.digest) or {}), "since_at": move.at, "kind": move.kind, "by": move.by}


def _recording(conn: sa.Connection, scope: Scope, agent: str) -> Json:
    e, s = exchanges.c, sessions.c
    mine = (e.tenant == scope.tenant, e.agent == agent)
    recent = sa.select(e.overhead_ms, e.status).where(*mine).order_by(e.started_at.desc()).limit(OVERHEAD_SAMPLE)
    sample = conn.execute(recent).all()
    overheads = [row.overhead_ms for row in sample if row.overhead_ms is not None]
    day = conn.execute(
        sa.select(
            sa.func.count(), sa.func.sum(sa.case((e.status != "ok", 1), else_=0)), sa.func.max(e.started_at)
        ).where(*mine, e.started_at >= scope.now - DAY_S)
    ).one()
    asked = sa.select(sa.func.count(), sa.func.sum(sa.case((has_thumb(scope.tenant), 1), else_=0)))
    total, judged = conn.execute(
        asked.where(
            s.tenant == scope.tenant,
            s.agent == agent,
            s.purpose != "exam",
            s.last_at >= scope.now - HEARD_DAYS * DAY_S,
        )
    ).one()
    return {
        "exchanges_day": day[0],
        "failed_day": int(day[1] or 0),
        "last_exchange_at": day[2],
        "sessions_recent": total,
        "judged_recent": int(judged or 0),
        "judged_share": int(judged or 0) / total if total else None,
        "overhead_p50_ms": statistics.median(overheads) if overheads else None,
        "lost": scope.facts.get("lost"),
        "engine": scope.facts.get("engine"),
    }


def _heard(conn: sa.Connection, scope: Scope, agent: str) -> list[Json]:
    """Counts by kind and day of the last 30 days, oldest day first."""
    f, s = feedback.c, sessions.c
    day = sa.cast((scope.now - f.received_at) / DAY_S, sa.Integer).label("day")
    thumb_up = sa.case((f.kind == "thumb", is_up()), else_=None).label("thumb_up")
    query = (
        sa.select(f.kind, thumb_up, day, sa.func.count())
        .join(sessions, sa.and_(s.tenant == f.tenant, s.id == f.session_id))
        .where(
            f.tenant == scope.tenant,
            f.received_at >= scope.now - HEARD_DAYS * DAY_S,
            s.agent == agent,
            s.purpose != "exam",
        )
        .group_by(f.kind, thumb_up, day)
    )
    found: dict[str, list[int]] = {}
    for kind, up, days_ago, number in conn.execute(query):
        name = kind if up is None else ("thumb up" if up else "thumb down")
        days = found.setdefault(name, [0] * HEARD_DAYS)
        days[HEARD_DAYS - 1 - max(0, min(days_ago, HEARD_DAYS - 1))] += number
    order = ["thumb up", "thumb down", "text", "correction", "preference", "category", "number", "outcome"]
    known = sorted(found, key=lambda name: (order.index(name) if name in order else len(order), name))
    return [{"kind": name, "count": sum(found[name]), "days": found[name]} for name in known]


def _last_run(conn: sa.Connection, scope: Scope, agent: str) -> Json | None:
    r = runs.c
    columns = (r.id, r.objective, r.adapter_digest, r.error, r.started_at, r.updated_at, r.finished_at)
    query = sa.select(*columns, state_at(scope.now).label("state")).where(r.tenant == scope.tenant, r.agent == agent)
    row = conn.execute(query.order_by(r.started_at.desc()).limit(1)).mappings().first()
    return None if row is None else dict(row)


def _verdicts(conn: sa.Connection, scope: Scope, agent: str, labels: Names) -> list[Json]:
    """The newest verdicts on this agent, newest first, short."""
    v = verdicts.c
    query = sa.select(v.id, v.candidate, v.incumbent, v.decision, v.sentence, v.created_at)
    query = query.where(v.tenant == scope.tenant, v.agent == agent).order_by(v.created_at.desc(), v.id.desc())
    return [
        {
            **dict(row),
            "candidate": labels.version(agent, row["candidate"]),
            "incumbent": labels.version(agent, row["incumbent"]),
        }
        for row in conn.execute(query.limit(20)).mappings()
    ]


def _decisions(run: Json | None, examined: list[Json]) -> list[Json]:
    """What waits for a person, each with the fact and the command; nothing here expires by itself."""
    waiting: list[Json] = []
    newest: dict[str, Json] = {}
    for verdict in reversed(examined):
        newest[verdict["candidate"]["digest"]] = verdict
    for verdict in newest.values():
        fresh = not verdict["candidate"]["released"] and verdict["incumbent"]["serving"]
        if verdict["decision"] == "promote" and fresh:
            waiting.append({"kind": "promote", "verdict": verdict, "at": verdict["created_at"]})
    if run is not None and run["state"] in ("interrupted", "failed"):
        waiting.append({"kind": "run", "run": run, "at": run["updated_at"]})
    return waiting


def _parked(conn: sa.Connection, tenant: str) -> int:
    f = feedback.c
    return conn.scalar(sa.select(sa.func.count()).where(f.tenant == tenant, f.state == "parked")) or 0
