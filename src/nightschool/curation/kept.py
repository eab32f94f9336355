"""What share of an agent's sampled tokens may train, and what keeps the others from it.

This is what capture decides, before anything is said about a session: whether the tokens are exact, the reply
whole, the branch the main one. What a night makes of them is in its ledger.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

import sqlalchemy as sa

from nightschool.objectives.legality import (
    MARKS_AGAINST,
    RETRIED,
    SIDE_BRANCH,
    Facts,
    reason_against_any,
    reason_against_tokens,
)
from nightschool.store.schema import exchanges
from nightschool.types import Branch, Fidelity, Json, Purpose, Support


@dataclass(slots=True)
class Count:
    """`tokens` counts those of exchanges whose number is known, by ids or by the engine's own word."""

    exchanges: int = 0
    tokens: int = 0

    def add(self, num_exchanges: int, num_tokens: int) -> None:
        self.exchanges += num_exchanges
        self.tokens += num_tokens


@dataclass(frozen=True, slots=True)
class Kept:
    """`lost` counts by reason, the largest first. `share` is `None` while no token is known."""

    total: Count = field(default_factory=Count)
    kept: Count = field(default_factory=Count)
    lost: dict[str, Count] = field(default_factory=dict)

    @property
    def share(self) -> float | None:
        return self.kept.tokens / self.total.tokens if self.total.tokens else None

    def as_json(self) -> Json:
        return {
            "share": self.share,
            "sampled_tokens": self.total.tokens,
            "kept_tokens": self.kept.tokens,
            "exchanges": self.total.exchanges,
            "kept_exchanges": self.kept.exchanges,
            "lost": [{"reason": reason, **asdict(count)} for reason, count in self.lost.items()],
        }


def kept_share(conn: sa.Connection, tenant: str, agent: str, since: float = 0.0) -> Kept:
    """Of the exchanges that served since then; exams are for examining. One query."""
    total, kept = Count(), Count()
    lost: dict[str, Count] = {}
    for reason, num_exchanges, num_tokens in _counted(conn, tenant, agent, since):
        total.add(num_exchanges, num_tokens)
        place = kept if reason is None else lost.setdefault(reason, Count())
        place.add(num_exchanges, num_tokens)
    ordered = sorted(lost.items(), key=lambda item: (-item[1].tokens, -item[1].exchanges, item[0]))
    return Kept(total, kept, dict(ordered))


def _counted(conn: sa.Connection, tenant: str, agent: str, since: float) -> Iterator[tuple[str | None, int, int]]:
    x = exchanges.c
    flags = sa.cast(x.flags, sa.Text)
    facts = (x.status, x.branch, x.training_allowed, x.context_complete, x.fidelity, x.support, flags)
    told = sa.func.coalesce(x.num_sampled_tokens, x.usage["completion_tokens"].as_integer())
    query = sa.select(*facts, sa.func.count(), sa.func.coalesce(sa.func.sum(told), 0)).group_by(*facts)
    mine = (x.tenant == tenant, x.agent == agent, x.started_at >= since, x.purpose == Purpose.SERVE.value)
    for status, branch, allowed, complete, fidelity, support, marks, num_exchanges, num_tokens in conn.execute(
        query.where(*mine)
    ):
        found = Facts(
            status=status,
            branch=Branch(branch),
            training_allowed=allowed,
            context_complete=complete,
            fidelity=Fidelity(fidelity),
            support=Support(support),
        )
        yield _reason(found, json.loads(marks or "null") or []), num_exchanges, int(num_tokens)


def _reason(facts: Facts, flags: list[str]) -> str | None:
    mark = next((MARKS_AGAINST[flag] for flag in flags if flag in MARKS_AGAINST), None)
    against = reason_against_any(facts) or mark or reason_against_tokens(facts)
    if against is None and facts.branch != Branch.MAIN:
        against = RETRIED if facts.branch == Branch.RETRY else SIDE_BRANCH
    return against
