"""What became of every exchange, by reason: what the runs entered, and what awaits the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from nightschool.curation.kept import kept_share
from nightschool.dashboard.formatting import DAY_S
from nightschool.dashboard.queries.material import CAP, decoded, facts_of, newest_exchanges, says
from nightschool.dashboard.queries.scope import Scope, agents
from nightschool.objectives.legality import Facts, Heard, heard_in, legal, standing
from nightschool.store.schema import exchanges, feedback, ledger, runs, sessions
from nightschool.types import Branch, Json

EXAMPLES, LOOKED_THROUGH = 20, 5_000
STATES = ("trained", "held", "excluded")
OPEN = "open"  # no run has looked at it, and the next one considers it


def ledger_page(conn: sa.Connection, scope: Scope) -> Json:
    """Exchanges by state and reason, each counted once: by the newest run that looked at it.

    A state and a reason in the URL ask for examples. At most 6 queries.
    """
    known = agents(conn, scope.tenant)
    agent = scope.text("agent") or (known[0] if len(known) == 1 else None)
    counted = scope.counts.get(("ledger", scope.tenant, agent), scope.now, lambda: _lines(conn, scope.tenant, agent))
    seen, unseen = counted["looked_at"], counted["not_looked_at"]
    counts = {state: sum(line["exchanges"] for line in seen if line["state"] == state) for state in STATES}
    asked = {name: scope.text(name) for name in ("state", "reason")}
    shown = seen if scope.text("by") == "runs" else unseen
    chosen = next((line for line in shown if asked == {name: line[name] for name in asked}), None)
    return {
        "agent": scope.text("agent"),
        "agents": known,
        "only": agent,
        "chosen": chosen and {**asked, "by": "runs" if shown is seen else ""},
        "examples": [] if chosen is None else _examples(conn, scope.tenant, agent, chosen, shown is seen),
        "looked_at": seen,
        "not_looked_at": unseen,
        "counts": counts | {"open": sum(line["exchanges"] for line in unseen)},
        "cap": CAP,
        "counted_at": counted["counted_at"],
        "kept": None if agent is None else _kept(conn, scope, agent),
    }


def _kept(conn: sa.Connection, scope: Scope, agent: str) -> Json:
    """Which share of the tokens sampled in the last 24 hours may train, and what keeps the others from it."""
    since = scope.now - DAY_S
    key = ("kept", scope.tenant, agent)
    return scope.counts.get(key, scope.now, lambda: kept_share(conn, scope.tenant, agent, since).as_json())


def _lines(conn: sa.Connection, tenant: str, agent: str | None) -> Json:
    return {"looked_at": looked_at(conn, tenant, agent), "not_looked_at": not_looked_at(conn, tenant, agent)}


def looked_at(conn: sa.Connection, tenant: str, agent: str | None) -> list[Json]:
    """By state and reason of the newest run that entered the exchange, with the newest such exchange.

    Of the newest `CAP` lines: one exchange has a line for each run that looked at it.
    """
    line = ledger.c
    newest = sa.select(line.exchange_id, line.run_id, line.state, line.reason).where(line.tenant == tenant)
    if agent is not None:
        newest = newest.where(line.run_id.in_(_runs_of(tenant, agent)))
    newest = newest.order_by(line.exchange_id.desc(), line.run_id.desc()).limit(CAP).subquery("newest")
    query = (
        sa.select(
            newest.c.state,
            newest.c.reason,
            sa.func.count().label("exchanges"),
            sa.func.max(newest.c.exchange_id).label("example"),
        )
        .where(~_entered_later(tenant, newest.c))
        .group_by(newest.c.state, newest.c.reason)
    )
    rows = [dict(row) for row in conn.execute(query).mappings()]
    return _ordered(rows)


def not_looked_at(conn: sa.Connection, tenant: str, agent: str | None) -> list[Json]:
    """Exchanges that no run has entered, by what the next one would do with them, of the newest `CAP`."""
    newest = newest_exchanges(tenant, agent).subquery("newest")
    entered = sa.exists().where(ledger.c.tenant == tenant, ledger.c.exchange_id == newest.c.id)
    columns = (newest.c.id, newest.c.code, newest.c.status, _judged(tenant, newest).label("judged"))
    left = sa.select(*columns).where(~entered).subquery("left_over").c
    key = (left.code, left.status, left.judged)
    query = sa.select(*key, sa.func.count().label("number"), sa.func.max(left.id).label("example")).group_by(*key)
    rows = conn.execute(query).mappings()
    found: dict[tuple[str, str], Json] = {}
    for row in rows:
        state, reason = state_today(decoded(row["code"], row["status"], _verdict(row["judged"])))
        line = {"state": state, "reason": reason, "exchanges": 0, "example": ""}
        kept = found.setdefault((state, reason), line)
        kept["exchanges"] += row["number"]
        kept["example"] = max(kept["example"], row["example"])
    return _ordered(found.values())


def _examples(conn: sa.Connection, tenant: str, agent: str | None, line: Json, seen: bool) -> list[Json]:
    """The newest exchanges behind one line, with their session's first words."""
    ids = _of_reason(tenant, agent, line) if seen else _of_standing(conn, tenant, agent, line)
    e, s = exchanges.c, sessions.c
    query = (
        sa.select(e.id, e.session_id, e.started_at, e.agent, e.fidelity, e.fidelity_reason, e.dialect, s.preview)
        .join(sessions, sa.and_(s.tenant == e.tenant, s.id == e.session_id))
        .where(e.tenant == tenant, e.id.in_(ids))
        .order_by(e.started_at.desc())
    )
    return [dict(row) for row in conn.execute(query).mappings()]


def _of_reason(tenant: str, agent: str | None, line: Json) -> sa.Select:
    c = ledger.c
    query = sa.select(c.exchange_id).where(
        c.tenant == tenant, c.state == line["state"], c.reason == line["reason"], ~_entered_later(tenant, c)
    )
    if agent is not None:
        query = query.where(c.run_id.in_(_runs_of(tenant, agent)))
    return query.order_by(c.exchange_id.desc()).limit(EXAMPLES)


def _entered_later(tenant: str, line: Any) -> sa.Exists:
    """Whether a newer run looked at the exchange of `line` as well."""
    later = ledger.alias("later").c
    return sa.exists().where(later.tenant == tenant, later.exchange_id == line.exchange_id, later.run_id > line.run_id)


def _of_standing(conn: sa.Connection, tenant: str, agent: str | None, line: Json) -> list[str]:
    """Goes through the newest exchanges one by one: what stands against them is no column."""
    newest = newest_exchanges(tenant, agent).subquery("newest")
    entered = sa.exists().where(ledger.c.tenant == tenant, ledger.c.exchange_id == newest.c.id)
    query = sa.select(newest, _judged(tenant, newest).label("judged")).where(~entered).limit(LOOKED_THROUGH)
    found = []
    for row in conn.execute(query).mappings():
        if state_today(decoded(row["code"], row["status"], _verdict(row["judged"]))) == (line["state"], line["reason"]):
            found.append(row["id"])
        if len(found) == EXAMPLES:
            break
    return found or [line["example"]]


def today(exchange: Mapping[str, Any], said: Iterable[Mapping[str, Any]]) -> Json:
    """What the next run would do with one exchange, and which objectives could learn from it.

    `said` is the feedback on it and on its session as a whole, which speaks about the main branch alone.
    """
    on_main = exchange["branch"] == Branch.MAIN.value
    targets = {exchange["id"], None} if on_main else {exchange["id"]}
    facts = facts_of(exchange, heard_in(item["kind"] for item in said if item["exchange_id"] in targets))
    state, reason = state_today(facts)
    return {"state": state, "reason": reason, "objectives": legal(facts)}


def state_today(facts: Facts) -> tuple[str, str]:
    """What the next run would do with an exchange, as pages and the command line name it."""
    state, reason = standing(facts)
    return (state.value if state else OPEN), reason


def _verdict(judged: object) -> frozenset[Heard]:
    return frozenset({Heard.VERDICT}) if judged else frozenset()


def _runs_of(tenant: str, agent: str) -> sa.Select:
    return sa.select(runs.c.id).where(runs.c.tenant == tenant, runs.c.agent == agent)


def _judged(tenant: str, newest: Any) -> sa.ColumnElement[bool]:
    """Whether a verdict speaks about the exchange, or about its session while it stands on the main branch."""
    f = feedback.c
    verdicts = sa.and_(f.tenant == tenant, f.state == "matched", says(Heard.VERDICT))
    own = sa.select(f.exchange_id).where(verdicts, f.exchange_id.is_not(None))
    session = sa.select(f.session_id).where(verdicts, f.exchange_id.is_(None), f.session_id.is_not(None))
    on_main = newest.c.branch == Branch.MAIN.value
    return sa.or_(newest.c.id.in_(own), sa.and_(on_main, newest.c.session_id.in_(session)))


def _ordered(lines: Iterable[Json]) -> list[Json]:
    place = {state: number for number, state in enumerate((*STATES[:1], OPEN, *STATES[1:]))}
    return sorted(lines, key=lambda line: (place.get(line["state"], 9), -line["exchanges"], line["reason"]))
