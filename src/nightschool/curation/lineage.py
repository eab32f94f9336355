"""How far behind a policy version is, and which exchanges the incumbent has already learned from."""

from __future__ import annotations

import sqlalchemy as sa

from nightschool.releases.aliases import BASE, history
from nightschool.store.schema import adapters, ledger, runs
from nightschool.types import LedgerState


def releases_behind(conn: sa.Connection, tenant: str, agent: str) -> dict[str, int]:
    """Moves of the alias since each version last served; the one that serves now is 0.

    The bare base, where it never was a release, served before all of them.
    """
    moves = history(conn, tenant, agent)
    behind = {move.digest: len(moves) - 1 - place for place, move in enumerate(moves)}
    behind.setdefault(BASE, len(moves))
    return behind


def ancestors(conn: sa.Connection, tenant: str, digest: str | None) -> list[str]:
    """An adapter and those it was trained from, newest first. The bare base has none."""
    line: list[str] = []
    while digest is not None and digest != BASE and digest not in line:
        line.append(digest)
        query = sa.select(adapters.c.parent_digest).where(adapters.c.tenant == tenant, adapters.c.digest == digest)
        digest = conn.scalar(query)
    return line


def learned_from(conn: sa.Connection, tenant: str, digest: str | None) -> set[str]:
    """Exchanges that an adapter or one it descends from was trained on."""
    line = ancestors(conn, tenant, digest)
    if not line:
        return set()
    same_run = sa.and_(runs.c.tenant == ledger.c.tenant, runs.c.id == ledger.c.run_id)
    query = sa.select(ledger.c.exchange_id).select_from(ledger.join(runs, same_run))
    query = query.where(
        ledger.c.tenant == tenant, ledger.c.state == LedgerState.TRAINED.value, runs.c.adapter_digest.in_(line)
    )
    return set(conn.scalars(query))
