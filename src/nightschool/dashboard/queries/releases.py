"""Releases: every adapter of an agent with its verdict and its success, and every move of the alias."""

from __future__ import annotations

import sqlalchemy as sa

from nightschool.dashboard.queries.overview import NEEDED_JUDGED, success_counts, success_rows
from nightschool.dashboard.queries.scope import Names, Scope, agents, names
from nightschool.releases.aliases import rollback_target
from nightschool.store.schema import adapters, exams, releases, verdicts
from nightschool.types import Json, Release

MOVES = 200


def release_list(conn: sa.Connection, scope: Scope) -> Json:
    """All agents, or the one asked for. At most 7 queries."""
    known = agents(conn, scope.tenant)
    asked = scope.text("agent")
    shown = [asked] if asked else known
    labels = names(conn, scope.tenant)
    counts = success_counts(conn, scope.tenant, asked or None)
    moves = _moves(conn, scope.tenant)
    examined = _verdicts(conn, scope.tenant)
    made = _adapters(conn, scope.tenant)
    open_exams = _open_exams(conn, scope.tenant)
    sections = []
    for agent in shown:
        mine = [move for move in moves if move.agent == agent]
        back = rollback_target(mine) if mine else None
        sections.append(
            {
                "agent": agent,
                "serving": labels.version(agent, labels.serving.get(agent)),
                "serving_since_at": mine[-1].at if mine else None,
                "back_to": labels.version(agent, back),
                "rows": _rows(agent, labels, counts, (mine, examined, made, open_exams)),
                "moves": [_move(move, labels) for move in reversed(mine[-MOVES:])],
            }
        )
    return {"agents": known, "agent": asked, "sections": sections, "needed_judged": NEEDED_JUDGED}


def _rows(
    agent: str,
    labels: Names,
    counts: dict[tuple[str, str], tuple[int, int]],
    evidence: tuple[list[Release], list[Json], dict[str, Json], list[Json]],
) -> list[Json]:
    """One row an adapter, newest first: released ones by their first move, candidates by when they were made."""
    moves, examined, made, open_exams = evidence
    first_moves = {move.digest: move for move in reversed(moves)}
    newest = {v["candidate"]: v for v in examined if v["agent"] == agent}
    exams_of = {exam["candidate"]: exam for exam in open_exams if exam["agent"] == agent}
    digests = set(first_moves) | set(newest) | {digest for digest, row in made.items() if row["agent"] == agent}
    judged = {row["version"]["digest"]: row for row in success_rows(counts, labels, agent)}
    rows = []
    for digest in digests:
        move, adapter = first_moves.get(digest), made.get(digest)
        verdict, exam = newest.get(digest), exams_of.get(digest)
        at = move.at if move else adapter["created_at"] if adapter else verdict["created_at"] if verdict else None
        rows.append(
            {
                "version": labels.version(agent, digest),
                "number": labels.numbers.get((agent, digest)),
                "state": _state(digest, agent, labels, verdict, exam),
                "at": at,
                "reason": move.reason if move else None,
                "verdict": verdict,
                "exam": exam,
                "run_id": adapter["run_id"] if adapter else None,
                "parent": labels.version(agent, adapter["parent_digest"]) if adapter else None,
                "success": judged.get(digest),
            }
        )
    return sorted(rows, key=lambda row: (row["at"] or 0.0, row["version"]["digest"]), reverse=True)


def _state(digest: str, agent: str, labels: Names, verdict: Json | None, exam: Json | None) -> str:
    if labels.serving.get(agent) == digest:
        return "serving"
    if (agent, digest) in labels.numbers:
        return "served"
    if exam is not None:
        return "in exam"
    if verdict is None:
        return "not examined"
    return {"promote": "passed", "refuse": "refused"}.get(verdict["decision"], "not enough data")


def _moves(conn: sa.Connection, tenant: str) -> list[Release]:
    r = releases.c
    columns = [releases.c[name] for name in Release.__dataclass_fields__]
    query = sa.select(*columns).where(r.tenant == tenant).order_by(r.agent, r.at, r.id)
    return [Release(**row) for row in conn.execute(query).mappings()]


def _move(move: Release, labels: Names) -> Json:
    return {
        "id": move.id,
        "at": move.at,
        "kind": move.kind,
        "by": move.by,
        "reason": move.reason,
        "version": labels.version(move.agent, move.digest),
        "previous": labels.version(move.agent, move.previous_digest),
        "verdict_id": move.verdict_id,
    }


def _verdicts(conn: sa.Connection, tenant: str) -> list[Json]:
    """Oldest first, so that the newest on a candidate wins."""
    v = verdicts.c
    columns = (v.id, v.agent, v.candidate, v.incumbent, v.decision, v.sentence, v.created_at)
    query = sa.select(*columns).where(v.tenant == tenant).order_by(v.created_at, v.id)
    return [dict(row) for row in conn.execute(query).mappings()]


def _adapters(conn: sa.Connection, tenant: str) -> dict[str, Json]:
    a = adapters.c
    query = sa.select(a.digest, a.agent, a.parent_digest, a.run_id, a.created_at).where(a.tenant == tenant)
    return {row["digest"]: dict(row) for row in conn.execute(query).mappings()}


def _open_exams(conn: sa.Connection, tenant: str) -> list[Json]:
    x = exams.c
    query = sa.select(x.id, x.agent, x.candidate, x.incumbent, x.opened_at).where(x.tenant == tenant, x.state == "open")
    return [dict(row) for row in conn.execute(query).mappings()]
