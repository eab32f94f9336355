"""Who is looking at what: tenant, clock, URL parameters; and the names under which digests are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import sqlalchemy as sa

from nightschool.dashboard.counts import Counts
from nightschool.dashboard.formatting import short_id
from nightschool.store.schema import aliases, releases, sessions
from nightschool.types import Json

BASE = "base"


@dataclass(frozen=True, slots=True)
class Scope:
    """One page view. `facts` is what the running process knows and the store does not; `counts` outlives the view."""

    tenant: str
    now: float
    params: Mapping[str, str]
    facts: Json = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts, compare=False)

    def text(self, name: str) -> str:
        """A filter from the URL without surrounding space; empty when absent."""
        return self.params.get(name, "").replace("\0", "").strip()[:400]


@dataclass(frozen=True, slots=True)
class Names:
    """What people call the digests: release numbers per agent, and which digest serves."""

    numbers: dict[tuple[str, str], int]
    serving: dict[str, str]

    def label(self, agent: str | None, digest: str | None) -> str:
        """`v3` once released, `base` for the bare model, else the digest's two ends."""
        if not digest:
            return ""
        number = self.numbers.get((agent or "", digest))
        if number is None and agent is None:
            number = next((value for (_, known), value in self.numbers.items() if known == digest), None)
        if number is not None:
            return f"v{number}"
        return BASE if digest == BASE else short_id(digest)

    def version(self, agent: str | None, digest: str | None) -> Json | None:
        """A digest as pages link it; None stays None."""
        if not digest:
            return None
        return {
            "digest": digest,
            "label": self.label(agent, digest),
            "released": (agent or "", digest) in self.numbers,
            "serving": bool(agent) and self.serving.get(agent or "") == digest,
        }


def names(conn: sa.Connection, tenant: str) -> Names:
    """Release numbers and serving digests of all agents. One query."""
    r, alias = releases.c, aliases.c
    serves = sa.and_(alias.tenant == r.tenant, alias.agent == r.agent, alias.digest == r.digest)
    query = (
        sa.select(r.agent, r.digest, sa.func.min(r.number), sa.func.count(alias.digest))
        .select_from(releases.outerjoin(aliases, serves))
        .where(r.tenant == tenant)
        .group_by(r.agent, r.digest)
    )
    rows = conn.execute(query).all()
    return Names(
        {(agent, digest): number for agent, digest, number, _ in rows},
        {agent: digest for agent, digest, _, serving in rows if serving},
    )


def agents(conn: sa.Connection, tenant: str) -> list[str]:
    """Every agent that has traffic or an alias, by name.

    Walks the index from one agent to the next instead of reading every session.
    """
    s = sessions.c
    first = sa.select(sa.func.min(s.agent).label("agent")).where(s.tenant == tenant)
    walk = first.cte("walk", recursive=True)
    following = (
        sa.select(sa.func.min(s.agent)).where(s.tenant == tenant, s.agent > walk.c.agent).correlate(walk)
    ).scalar_subquery()
    walk = walk.union_all(sa.select(following).where(walk.c.agent.is_not(None)))
    seen = sa.select(walk.c.agent).where(walk.c.agent.is_not(None))
    known = sa.select(aliases.c.agent).where(aliases.c.tenant == tenant)
    return sorted(conn.scalars(seen.union(known)))
