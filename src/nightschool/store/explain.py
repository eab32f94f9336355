"""What became of one exchange: what was said about it, which runs looked at it, where it lives on (law 12)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import sqlalchemy as sa

from nightschool.errors import MissingError
from nightschool.store.exchanges import find_exchange
from nightschool.store.schema import adapters, aliases, exchanges, feedback, ledger, releases, runs, sessions
from nightschool.types import Json, LedgerState, Sampler

UNSEEN = "not yet looked at by any run"

# Hashes and packed vectors say nothing to a person.
HIDDEN = {
    "tenant", "request_body", "reply_body", "tools_blob", "prompt_message", "reply_match_hash", "prompt_ids",
    "context_hash",
}  # fmt: skip


def explain(conn: sa.Connection, tenant: str, exchange_id: str) -> Json:
    """Facts, session, branch, feedback, ledger lines and releases of one exchange, ready for JSON.

    `exchange_id` may also be the upstream's id or an external key. `branch` lists the exchanges from the
    session's first to this one. `releases` are those whose adapter trained on it, or descends from one that
    did (`trained_here` tells which). `retries` are the exchanges that repeat this one.

    Raises:
        MissingError: no such exchange.
    """
    found = find_exchange(conn, tenant, exchange_id)
    if found is None:
        raise MissingError(
            f"There is no exchange {exchange_id}.",
            "Neither an id nor a key of one is called that.",
            "nightschool status",
        )
    columns = [c for c in exchanges.c if c.name not in HIDDEN]
    exchange = _rows(conn, sa.select(*columns).where(exchanges.c.tenant == tenant, exchanges.c.id == found))[0]
    exchange["sampler"] = asdict(Sampler(**exchange["sampler"]))
    lines = _ledger(conn, tenant, found)
    return {
        "exchange": exchange,
        "session": _session(conn, tenant, exchange["session_id"]),
        "branch": _branch(conn, tenant, found),
        "retries": _retries(conn, tenant, exchange),
        "feedback": _feedback(conn, tenant, found, exchange["session_id"]),
        "ledger": lines,
        "releases": _releases(conn, tenant, found),
        "summary": _summary(lines),
    }


def _session(conn: sa.Connection, tenant: str, session_id: str) -> Json:
    columns = [c for c in sessions.c if c.name != "tenant"]
    return _rows(conn, sa.select(*columns).where(sessions.c.tenant == tenant, sessions.c.id == session_id))[0]


def _branch(conn: sa.Connection, tenant: str, exchange_id: str) -> list[str]:
    link = sa.select(exchanges.c.id, exchanges.c.parent_exchange_id, sa.literal(0).label("hop"))
    chain = link.where(exchanges.c.tenant == tenant, exchanges.c.id == exchange_id).cte("chain", recursive=True)
    above = sa.select(exchanges.c.id, exchanges.c.parent_exchange_id, chain.c.hop + 1)
    chain = chain.union_all(above.where(exchanges.c.tenant == tenant, exchanges.c.id == chain.c.parent_exchange_id))
    return list(conn.scalars(sa.select(chain.c.id).order_by(chain.c.hop.desc())))


def _retries(conn: sa.Connection, tenant: str, exchange: Json) -> list[str]:
    """By the index of the session that both belong to."""
    mine = (exchanges.c.tenant == tenant, exchanges.c.session_id == exchange["session_id"])
    query = sa.select(exchanges.c.id).where(*mine, exchanges.c.retry_of == exchange["id"])
    return list(conn.scalars(query.order_by(exchanges.c.started_at, exchanges.c.id)))


def _feedback(conn: sa.Connection, tenant: str, exchange_id: str, session_id: str) -> list[Json]:
    """Every judgement on the exchange or its whole session, oldest first; none is ever overwritten."""
    whole_session = sa.and_(feedback.c.session_id == session_id, feedback.c.exchange_id.is_(None))
    columns = [c for c in feedback.c if c.name not in ("tenant", "idempotency_key")]
    query = sa.select(*columns).where(
        feedback.c.tenant == tenant, sa.or_(feedback.c.exchange_id == exchange_id, whole_session)
    )
    return _rows(conn, query.order_by(feedback.c.received_at, feedback.c.id))


def _ledger(conn: sa.Connection, tenant: str, exchange_id: str) -> list[Json]:
    same_run = sa.and_(runs.c.tenant == ledger.c.tenant, runs.c.id == ledger.c.run_id)
    query = sa.select(
        ledger.c.run_id,
        ledger.c.state,
        ledger.c.reason,
        ledger.c.reward,
        ledger.c.advantage,
        ledger.c.weight,
        runs.c.objective,
        runs.c.state.label("run_state"),
        runs.c.started_at,
        runs.c.adapter_digest,
    ).select_from(ledger.outerjoin(runs, same_run))
    mine = query.where(ledger.c.tenant == tenant, ledger.c.exchange_id == exchange_id)
    return _rows(conn, mine.order_by(runs.c.started_at, ledger.c.run_id))


def _releases(conn: sa.Connection, tenant: str, exchange_id: str) -> list[Json]:
    trained = (
        sa.select(runs.c.adapter_digest)
        .join(ledger, sa.and_(ledger.c.tenant == runs.c.tenant, ledger.c.run_id == runs.c.id))
        .where(runs.c.tenant == tenant, ledger.c.exchange_id == exchange_id, ledger.c.state == LedgerState.TRAINED)
        .where(runs.c.adapter_digest.is_not(None))
    )
    line = trained.cte("line", recursive=True)
    children = sa.select(adapters.c.digest).where(
        adapters.c.tenant == tenant, adapters.c.parent_digest == line.c.adapter_digest
    )
    line = line.union(children)
    serving = sa.select(aliases.c.release_id).where(aliases.c.tenant == tenant)
    query = sa.select(
        releases.c.id,
        releases.c.agent,
        releases.c.number,
        releases.c.digest,
        releases.c.kind,
        releases.c.at,
        releases.c.id.in_(serving).label("serving"),
        releases.c.digest.in_(trained).label("trained_here"),
    )
    mine = query.where(releases.c.tenant == tenant, releases.c.digest.in_(sa.select(line.c.adapter_digest)))
    return _rows(conn, mine.order_by(releases.c.at))


def _summary(lines: Sequence[Json]) -> str:
    if not lines:
        return UNSEEN
    last = lines[-1]
    return f"{last['state']} by run {last['run_id']}: {last['reason']}"


def _rows(conn: sa.Connection, query: sa.Select) -> list[Json]:
    return [dict(row) for row in conn.execute(query).mappings()]
