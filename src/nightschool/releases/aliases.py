"""The one pointer that says which adapter an agent serves, and every move it ever made.

Each move is one transaction of the writer: the alias row and a `releases` row change together, and the
alias only moves from the digest that was read in the same transaction.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import sqlalchemy as sa

from nightschool.access.audit import Entry, append
from nightschool.errors import BusyError, MissingError, RefusedError
from nightschool.store import schema
from nightschool.store.database import Store
from nightschool.store.failpoints import fail_point
from nightschool.store.ids import new_id
from nightschool.types import Decision, Release

BASE = "base"  # the digest's place for the bare base model
CLOCK_STEP_S = 1e-6


@dataclass(frozen=True, slots=True)
class _Move:
    kind: str  # first | promote | override | roll_back
    by: str
    reason: str
    verdict_id: str | None = None


def current(conn: sa.Connection, tenant: str, agent: str) -> str | None:
    """The digest that serves `agent`, or `None` before its first release."""
    t = schema.aliases
    return conn.execute(sa.select(t.c.digest).where(t.c.tenant == tenant, t.c.agent == agent)).scalar()


def history(conn: sa.Connection, tenant: str, agent: str) -> list[Release]:
    """Every move of the alias, oldest first. The last one's digest is what serves now."""
    t = schema.releases
    rows = conn.execute(sa.select(t).where(t.c.tenant == tenant, t.c.agent == agent).order_by(t.c.at, t.c.id))
    return [Release(**{key: value for key, value in row.items() if key != "tenant"}) for row in rows.mappings()]


def version_name(conn: sa.Connection, tenant: str, agent: str, digest: str) -> str:
    """How people read a digest: `v3` once it was released, else the digest's two ends."""
    for release in history(conn, tenant, agent):
        if release.digest == digest:
            return f"v{release.number}"
    return digest if len(digest) <= 8 else f"{digest[:4]}…{digest[-2:]}"


def start(store: Store, agent: str, digest: str, by: str) -> Release:
    """Give `agent` its first release. There is nothing to compare it with, so no verdict is asked for.

    Edge: repeating the same start while that digest serves changes nothing.

    Raises:
        RefusedError: the agent already serves another adapter.
        MissingError: the adapter is not installed.
    """

    def write(conn: sa.Connection) -> Release:
        moves = history(conn, store.tenant, agent)
        if moves:
            if moves[-1].digest == digest:
                return moves[-1]
            raise RefusedError(
                f"{agent} already serves v{moves[-1].number}.",
                "A first release needs an agent that serves nothing.",
                f"nightschool gate {digest[:12]}",
            )
        return _record(conn, store.tenant, moves, agent, digest, _Move("first", by, "first release"))

    return store.write(write)


def promote(
    store: Store,
    agent: str,
    digest: str,
    verdict_id: str | None = None,
    by: str = "",
    reason: str = "",
    override: bool = False,
) -> Release:
    """Move the alias to `digest` on a stored verdict that says promote over what serves now.

    Without `verdict_id` the newest verdict on this pair counts. `override` promotes without one; who and
    why are recorded. Edge: repeating a promotion that its verdict already made changes nothing.

    Raises:
        RefusedError: no such verdict, it says something else, or it compared with an older incumbent.
        MissingError: the agent serves nothing yet, or the adapter is not installed.
    """

    def write(conn: sa.Connection) -> Release:
        moves = history(conn, store.tenant, agent)
        if not moves:
            raise MissingError(
                f"{agent} serves nothing yet.", "Its first release is started, not promoted.", "nightschool status"
            )
        latest = moves[-1]
        if latest.digest == digest:
            if verdict_id is not None and latest.verdict_id == verdict_id:
                return latest
            raise RefusedError(f"v{latest.number} already serves {agent}.", "", "nightschool status")
        if override:
            if not reason.strip():
                raise RefusedError(
                    "The override was not made.",
                    "An override is recorded with its reason, and none was given.",
                    f"nightschool promote {digest[:12]} --override --reason ...",
                )
            release = _record(conn, store.tenant, moves, agent, digest, _Move("override", by, reason, verdict_id))
            facts = {"agent": agent, "from": latest.digest, "to": digest, "reason": reason, "release": release.id}
            append(conn, store.tenant, Entry(by, "promote.override", facts))
            return release
        verdict = _promoting_verdict(conn, store.tenant, agent, (digest, latest.digest), verdict_id)
        return _record(conn, store.tenant, moves, agent, digest, _Move("promote", by, reason, verdict))

    return store.write(write)


def roll_back(store: Store, agent: str, by: str, reason: str = "") -> Release:
    """Move the alias to the adapter that served before this one; again, and it goes further back.

    Raises:
        RefusedError: there is nothing before it.
    """

    def write(conn: sa.Connection) -> Release:
        moves = history(conn, store.tenant, agent)
        if not moves:
            raise MissingError(f"{agent} serves nothing yet.", "There is no release to leave.", "nightschool status")
        target = rollback_target(moves)
        if target is None:
            raise RefusedError(
                f"v{moves[-1].number} is as far back as {agent} goes.",
                "No other adapter served before it.",
                "nightschool status",
            )
        return _record(conn, store.tenant, moves, agent, target, _Move("roll_back", by, reason))

    return store.write(write)


def rollback_target(moves: list[Release]) -> str | None:
    """The digest a roll back goes to: releases push, roll backs pop, what lies below the top is meant."""
    stack: list[str] = []
    for move in moves:
        if move.kind == "roll_back":
            stack.pop()
        else:
            stack.append(move.digest)
    return stack[-2] if len(stack) > 1 else None


def _promoting_verdict(
    conn: sa.Connection, tenant: str, agent: str, pair: tuple[str, str], verdict_id: str | None
) -> str:
    candidate, incumbent = pair
    t = schema.verdicts
    query = sa.select(t).where(t.c.tenant == tenant, t.c.agent == agent, t.c.candidate == candidate)
    if verdict_id is not None:
        query = query.where(t.c.id == verdict_id)
    rows = conn.execute(query.order_by(t.c.created_at.desc(), t.c.id.desc())).mappings().all()
    examine = f"nightschool gate {candidate[:12]}"
    if not rows:
        raise RefusedError(f"{candidate[:12]} was not promoted.", "No verdict on it is stored.", examine)
    row = next((row for row in rows if row["incumbent"] == incumbent), None)
    if row is None:
        raise RefusedError(
            f"{candidate[:12]} was not promoted.",
            f"The incumbent has changed since: it was compared with {rows[0]['incumbent'][:12]}, "
            f"{incumbent[:12]} serves now.",
            examine,
        )
    if row["decision"] != Decision.PROMOTE:
        raise RefusedError(
            f"{candidate[:12]} was not promoted.",
            f"Verdict {row['id']} says: {row['sentence']}",
            f"nightschool promote {candidate[:12]} --override --reason ...",
        )
    return row["id"]


def _record(conn: sa.Connection, tenant: str, moves: list[Release], agent: str, digest: str, move: _Move) -> Release:
    """Write one move. `moves` is the history read in this transaction."""
    if not move.by.strip():
        raise RefusedError(f"{agent} was not moved.", "Every move records who made it, and nobody was named.", "")
    _require_installed(conn, tenant, digest)
    latest = moves[-1] if moves else None
    numbers = {move.digest: move.number for move in moves}
    release = Release(
        id=new_id(),
        agent=agent,
        number=numbers.get(digest, len(numbers) + 1),
        digest=digest,
        kind=move.kind,
        at=max(time.time(), latest.at + CLOCK_STEP_S if latest else 0.0),
        by=move.by,
        reason=move.reason,
        previous_digest=latest.digest if latest else None,
        verdict_id=move.verdict_id,
    )
    row = {name: getattr(release, name) for name in Release.__dataclass_fields__}
    conn.execute(schema.releases.insert().values(tenant=tenant, **row))
    fail_point("alias.recorded")
    _point(conn, tenant, release, latest)
    fail_point("alias.moved")
    return release


def _point(conn: sa.Connection, tenant: str, release: Release, latest: Release | None) -> None:
    t = schema.aliases
    values = {"digest": release.digest, "release_id": release.id, "updated_at": release.at}
    if latest is None:
        conn.execute(t.insert().values(tenant=tenant, agent=release.agent, **values))
        return
    same = (t.c.tenant == tenant, t.c.agent == release.agent, t.c.release_id == latest.id)
    moved = conn.execute(t.update().where(*same).values(**values))
    if moved.rowcount != 1:
        raise BusyError(f"{release.agent} was not moved.", "Somebody else moved it meanwhile.", "nightschool status")


def _require_installed(conn: sa.Connection, tenant: str, digest: str) -> None:
    t = schema.adapters
    known = conn.execute(sa.select(t.c.digest).where(t.c.tenant == tenant, t.c.digest == digest)).scalar()
    if known is None and digest != BASE:
        raise MissingError(f"Adapter {digest[:12]} is not installed.", "The store knows no such adapter.", "")
