"""How long exchanges are kept: what is older goes, with everything that only it referred to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Set
from dataclasses import asdict, dataclass

import sqlalchemy as sa

from nightschool.access.audit import Entry, append
from nightschool.store.database import Store
from nightschool.store.expiry import Removed, Swept, remove, sweep, write_aside
from nightschool.store.schema import exchanges, feedback, meta
from nightschool.store.splits import META_KEY

BATCH = 50  # exchanges of one transaction, which stays below 50 ms
PAGE = 10_000  # ids held at a time
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to go: exchanges begun before `before` (seconds since the epoch) that are not in `spared`.

    `spared` are those that adapters which serve were trained on.
    """

    before: float
    spared: Set[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Retained:
    """What went (or, in a rehearsal, would go) of one tenant: rows by kind, and how many old exchanges stay."""

    tenant: str
    before: float
    exchanges: int
    spared: int
    feedback: int = 0
    sessions: int = 0
    parked: int = 0
    bodies: int = 0
    messages: int = 0
    blobs: int = 0


def find_expired(store: Store, wish: Wish) -> Iterator[tuple[list[str], int]]:
    """The ids of what is to go, a page at a time, and how many on that page are as old and spared."""
    x, last = exchanges.c, ""
    while True:
        page = sa.select(x.id).where(x.tenant == store.tenant, x.started_at < wish.before, x.id > last)
        with store.read() as conn:
            old = list(conn.scalars(page.order_by(x.id).limit(PAGE)))
        if not old:
            return
        going = [exchange_id for exchange_id in old if exchange_id not in wish.spared]
        yield going, len(old) - len(going)
        last = old[-1]


def rehearse(store: Store, wish: Wish) -> Retained:
    """What `retain` would do, as far as it can be told without doing it."""
    pages = [(len(going), spared) for going, spared in find_expired(store, wish)]
    with store.read() as conn:
        parked = conn.scalar(sa.select(sa.func.count()).select_from(feedback).where(*_late(store.tenant, wish))) or 0
    going, spared = (sum(counts) for counts in zip((0, 0), *pages, strict=True))
    return Retained(store.tenant, wish.before, going, spared, parked=parked)


def retain(store: Store, wish: Wish, by: str, tell: Callable[[str], None] = lambda _line: None) -> Retained:
    """Delete what is to go, in small transactions; the audit log says how much. Stopped anywhere, run it again."""
    total = Removed()
    num_spared = 0
    for going, spared in find_expired(store, wish):
        num_spared += spared
        for start in range(0, len(going), BATCH):
            some = going[start : start + BATCH]
            removed = write_aside(store, lambda conn, ids=some: remove(conn, store.tenant, ids))
            total.exchanges += removed.exchanges
            total.feedback += removed.feedback
            total.sessions += removed.sessions
            tell(f"Removed {total.exchanges} exchanges")
    parked = store.write(lambda conn: conn.execute(sa.delete(feedback).where(*_late(store.tenant, wish))).rowcount)
    swept: Swept = sweep(store, tell)
    done = Retained(
        store.tenant, wish.before, total.exchanges, num_spared, total.feedback, total.sessions, parked, **asdict(swept)
    )
    if any((done.exchanges, done.parked, done.bodies, done.messages, done.blobs)):
        store.write(lambda conn: append(conn, store.tenant, Entry(by, "retention", asdict(done))))
    return done


def tenants(conn: sa.Connection) -> list[str]:
    """Every tenant that the store was ever opened for; the one query that asks for all of them."""
    return sorted(conn.scalars(sa.select(meta.c.tenant).where(meta.c.key == META_KEY)))


def cutoff(days: float, now: float | None = None) -> float:
    """The time before which an exchange is older than `days`. Units: seconds since the epoch."""
    return (time.time() if now is None else now) - days * DAY_S


def _late(tenant: str, wish: Wish) -> tuple[sa.ColumnElement[bool], ...]:
    """Feedback that has waited for its target for as long as exchanges are kept."""
    f = feedback.c
    return (f.tenant == tenant, f.state == "parked", f.received_at < wish.before)
