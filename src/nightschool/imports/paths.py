"""Stored sessions as conversations from the first message to the last, for those who write files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from nightschool.feedback.record import load_feedback
from nightschool.store.exchanges import session_exchanges
from nightschool.store.matching import match_key
from nightschool.store.schema import exchanges, import_items, sessions
from nightschool.store.tree import load_branch
from nightschool.types import Branch, Exchange, Feedback, Json, Purpose, Split


@dataclass(frozen=True, slots=True)
class Path:
    """A conversation that ends in a reply, or in what was said after it.

    `calls` gives the exchange whose reply stands at a place of `messages`; `fresh` holds the places of those that
    no earlier path of the session has.
    """

    messages: tuple[Json, ...]
    calls: Mapping[int, Exchange]
    fresh: frozenset[int]
    leaf: Exchange


@dataclass(frozen=True, slots=True)
class Session:
    """A session with everything that a file may tell of it. `rows` holds what an `Exchange` does not, by its id."""

    id: str
    name: str
    row: Any
    exchanges: tuple[Exchange, ...]
    feedback: tuple[Feedback, ...]
    paths: tuple[Path, ...]
    rows: Mapping[str, Any]
    children: tuple[Session, ...] = field(default=())

    def about(self, exchange_id: str | None) -> list[Feedback]:
        """What was said about one exchange, or about the session as a whole."""
        return [item for item in self.feedback if item.exchange_id == exchange_id]

    @property
    def main(self) -> Path | None:
        """The path of the main branch: the one with the most calls, of equals the last."""
        main = [path for path in self.paths if path.leaf.branch == Branch.MAIN]
        return max(main, key=lambda path: (len(path.calls), path.leaf.started_at), default=None)


def each_session(conn: sa.Connection, tenant: str, agent: str) -> Iterator[Session]:
    """The sessions an agent took part in, oldest first; those of its sub-agents are inside. Exams are left out."""
    s, x = sessions.c, exchanges.c
    own = sa.select(x.session_id).where(x.tenant == tenant, x.agent == agent, x.purpose != Purpose.EXAM.value)
    query = sa.select(s.id, s.parent_session_id).where(s.tenant == tenant, s.id.in_(own))
    rows = conn.execute(query.order_by(s.first_at, s.id)).all()
    there = {row.id for row in rows}
    for row in rows:
        if row.parent_session_id not in there:
            yield load_session(conn, tenant, row.id)


def load_session(conn: sa.Connection, tenant: str, session_id: str, depth: int = 0) -> Session:
    s, x = sessions.c, exchanges.c
    row = conn.execute(sa.select(sessions).where(s.tenant == tenant, s.id == session_id)).one()
    found = [e for e in session_exchanges(conn, tenant, session_id) if e.purpose != Purpose.EXAM]
    columns = (x.id, x.usage, x.training_allowed, x.external_key)
    more = conn.execute(sa.select(*columns).where(x.tenant == tenant, x.session_id == session_id)).all()
    below = sa.select(s.id).where(s.tenant == tenant, s.parent_session_id == session_id, s.id != session_id)
    children = conn.scalars(below.order_by(s.first_at, s.id)).all() if depth < 8 else []
    return Session(
        id=session_id,
        name=row.external_key or session_id,
        row=row,
        exchanges=tuple(found),
        feedback=load_feedback(conn, tenant, [session_id]),
        paths=tuple(_paths(found, _tails(conn, tenant, session_id))),
        rows={item.id: item for item in more},
        children=tuple(load_session(conn, tenant, child, depth + 1) for child in children),
    )


def why_not(session: Session, exchange: Exchange) -> str | None:
    """Why an exchange may not go into a file to train from; `None` when it may."""
    reasons = (
        (exchange.split != Split.TRAIN, f"split {exchange.split.value}"),
        (not session.rows[exchange.id].training_allowed, "training denied"),
        (exchange.status != "ok", f"status {exchange.status}"),
        (not exchange.choices, "no reply"),
        (not exchange.context_complete, "context incomplete"),
        (any(flag.startswith(("redacted_reply", "suspect")) for flag in exchange.flags), "flagged"),
    )
    return next((reason for applies, reason in reasons if applies), None)


def _tails(conn: sa.Connection, tenant: str, session_id: str) -> list[tuple[Json, ...]]:
    """Conversations that went on after their last reply."""
    i = import_items.c
    query = sa.select(i.leaf).where(i.tenant == tenant, i.session_id == session_id, i.leaf.is_not(None))
    return [load_branch(conn, tenant, leaf) for leaf in conn.scalars(query)]


def _paths(found: Sequence[Exchange], tails: Sequence[tuple[Json, ...]]) -> Iterator[Path]:
    """One path for each reply that nobody continued."""
    by_id = {exchange.id: exchange for exchange in found}
    continued = {exchange.parent_exchange_id for exchange in found}
    told: set[str] = set()
    for leaf in found:
        if not leaf.choices or leaf.id in continued:
            continue
        messages = (*leaf.messages, leaf.choices[0].message)
        calls = {len(leaf.messages): leaf}
        above = by_id.get(leaf.parent_exchange_id or "")
        while above is not None:
            place = len(above.messages)
            same = above.choices and place < len(messages) and _same(messages[place], above.choices[0].message)
            if same and place not in calls:
                calls[place] = above
            above = by_id.get(above.parent_exchange_id or "")
        tail = next((tail for tail in tails if tail[: len(messages)] == messages), messages)
        fresh = frozenset(place for place, exchange in calls.items() if exchange.id not in told)
        told |= {exchange.id for exchange in calls.values()}
        yield Path(tail, dict(sorted(calls.items())), fresh, leaf)


def _same(one: Json, other: Json) -> bool:
    return match_key(one) == match_key(other)
