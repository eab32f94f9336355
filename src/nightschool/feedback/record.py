"""Feedback in the store: append-only, idempotent and patient (law 5).

It may come before its target (then it is parked), days later, or twice. What holds now is the current view:
of one author's judgements of one kind on one target, the last.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa

from nightschool.errors import InputError, RefusedError
from nightschool.feedback.body import NewFeedback
from nightschool.store.ids import new_id
from nightschool.store.schema import exchanges, sessions
from nightschool.store.schema import feedback as table
from nightschool.types import Feedback, FeedbackKind, Purpose, TargetKind

# Keys live apart by who sent them: nobody without the admin token can occupy, or pass for, an admin's key.
ADMIN_KEYS = "admin:"
DATA_KEYS = "data:"
IN_PARTS = 500


class KeyTakenError(InputError):
    """The idempotency key belongs to a delivery with other content."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a delivery. `repeated` when it was in the store already; nothing was added then."""

    id: str
    state: str
    repeated: bool
    exchange_id: str | None
    session_id: str | None


@dataclass(frozen=True, slots=True)
class _Found:
    exchange_id: str | None
    session_id: str
    purpose: str


def insert_feedback(conn: sa.Connection, tenant: str, item: NewFeedback, admin: bool, now: float) -> Receipt:
    """Store one delivery and match it to its target, or park it. Call it inside a write of the store.

    Without a key, a delivery that says what its author's last one said is that one again; after a change
    of mind it is new.

    Raises:
        RefusedError: the target is an exam's, and this is no outcome from an admin.
        KeyTakenError: the key was used for something else.
    """
    found = _find(conn, tenant, item, admin)
    if found is not None and found.purpose == Purpose.EXAM and not (admin and item.kind == FeedbackKind.OUTCOME):
        raise RefusedError(
            "The feedback was not taken.",
            "Its target belongs to an exam, which takes outcomes from an administrator alone.",
            "Send kind `outcome` with the admin token.",
        )
    latest = None if item.key else _latest(conn, tenant, item, found)
    if latest is not None and _same(latest, item):
        return _receipt(latest, repeated=True)
    key = (ADMIN_KEYS if admin else DATA_KEYS) + (item.key or _derived_key(item, latest.id if latest else ""))
    known = conn.execute(sa.select(table).where(table.c.tenant == tenant, table.c.idempotency_key == key)).first()
    if known is not None:
        if not _same(known, item):
            raise KeyTakenError(
                "The feedback was not taken.",
                "Its idempotency key belongs to other feedback.",
                "Use a new key for new feedback.",
            )
        return _receipt(known, repeated=True)
    row = {
        "tenant": tenant,
        "id": new_id(),
        "idempotency_key": key,
        "target_kind": item.target_kind.value,
        "target_id": item.target_id,
        "state": "parked" if found is None else "matched",
        "exchange_id": found.exchange_id if found else None,
        "session_id": found.session_id if found else None,
        "name": item.name,
        "kind": item.kind.value,
        "value": item.value,
        "source": item.source,
        "author": item.author,
        "confidence": item.confidence,
        "observed_at": now if item.observed_at is None else item.observed_at,
        "received_at": now,
    }
    conn.execute(sa.insert(table), row)
    return Receipt(row["id"], row["state"], False, row["exchange_id"], row["session_id"])


def withhold_early(conn: sa.Connection, tenant: str, exchange_id: str) -> int:
    """Take parked feedback that no admin sent away from the exam's exchange that just took it; how many.

    Called in the write that stores an exchange of an exam, so nobody can judge an exam in advance. The
    rows stay visible, with state `refused`.
    """
    same = (exchanges.c.tenant == tenant, exchanges.c.id == exchange_id)
    session_id = conn.scalar(sa.select(exchanges.c.session_id).where(*same))
    allowed = sa.and_(
        table.c.idempotency_key.startswith(ADMIN_KEYS, autoescape=True), table.c.kind == FeedbackKind.OUTCOME.value
    )
    here = sa.or_(table.c.exchange_id == exchange_id, table.c.session_id == session_id)
    refused = {"state": "refused", "exchange_id": None, "session_id": None}
    return conn.execute(sa.update(table).where(table.c.tenant == tenant, here, ~allowed).values(refused)).rowcount


def load_feedback(
    conn: sa.Connection, tenant: str, session_ids: Sequence[str], as_of: float | None = None
) -> tuple[Feedback, ...]:
    """All feedback on these sessions and their exchanges, oldest first; `as_of` leaves out what came later."""
    rows: list[Any] = []
    for start in range(0, len(session_ids), IN_PARTS):
        query = sa.select(table).where(
            table.c.tenant == tenant, table.c.session_id.in_(session_ids[start : start + IN_PARTS])
        )
        if as_of is not None:
            query = query.where(table.c.received_at <= as_of)
        rows += conn.execute(query).all()
    return tuple(sorted(map(feedback_value, rows), key=_when))


def current_view(items: Iterable[Feedback]) -> tuple[Feedback, ...]:
    """The last of each (target, name, source, author), oldest first: later judgements supersede earlier ones."""
    last: dict[tuple[Any, ...], Feedback] = {}
    for item in sorted(items, key=_when):
        target = (item.target_kind, item.target_id)
        if item.exchange_id is not None:  # known by several ids, one exchange all the same
            target = (TargetKind.EXCHANGE, item.exchange_id)
        elif item.target_kind == TargetKind.SESSION and item.session_id is not None:
            target = (TargetKind.SESSION, item.session_id)
        last[(*target, item.name, item.source, item.author)] = item
    return tuple(sorted(last.values(), key=_when))


def feedback_value(row: Any) -> Feedback:
    """A row of the feedback table as a value."""
    return Feedback(
        id=row.id,
        target_kind=TargetKind(row.target_kind),
        target_id=row.target_id,
        kind=FeedbackKind(row.kind),
        value=row.value,
        name=row.name,
        source=row.source,
        author=row.author,
        confidence=row.confidence,
        observed_at=row.observed_at,
        received_at=row.received_at,
        exchange_id=row.exchange_id,
        session_id=row.session_id,
    )


def _when(item: Feedback) -> tuple[float, float, str]:
    received = item.received_at or 0.0
    return (received if item.observed_at is None else item.observed_at, received, item.id)


def _find(conn: sa.Connection, tenant: str, item: NewFeedback, admin: bool) -> _Found | None:
    """The newest target with that name; a session is also known by its exchanges' ids.

    Without the admin token a name means service before exams.
    """
    if item.target_kind == TargetKind.SESSION:
        is_exam = sa.literal(0) if admin else sa.case((sessions.c.purpose == Purpose.EXAM.value, 1), else_=0)
        named = sa.or_(sessions.c.id == item.target_id, sessions.c.external_key == item.target_id)
        query = sa.select(sessions.c.id, sessions.c.purpose).where(sessions.c.tenant == tenant, named)
        row = conn.execute(query.order_by(is_exam, sessions.c.last_at.desc()).limit(1)).first()
        if row is not None:
            return _Found(None, row.id, row.purpose)
        inside = _find_exchange(conn, tenant, item.target_id, (exchanges.c.id, exchanges.c.upstream_id), admin)
        return None if inside is None else _Found(None, inside.session_id, inside.purpose)
    columns = (exchanges.c.external_key,)
    if item.target_kind == TargetKind.EXCHANGE:
        columns = (exchanges.c.id, exchanges.c.upstream_id, exchanges.c.external_key)
    return _find_exchange(conn, tenant, item.target_id, columns, admin)


def _find_exchange(
    conn: sa.Connection, tenant: str, name: str, columns: Sequence[sa.Column[Any]], admin: bool
) -> _Found | None:
    is_exam = sa.literal(0) if admin else sa.case((exchanges.c.purpose == Purpose.EXAM.value, 1), else_=0)
    for column in columns:
        query = sa.select(exchanges.c.id, exchanges.c.session_id, exchanges.c.purpose)
        query = query.where(exchanges.c.tenant == tenant, column == name)
        row = conn.execute(query.order_by(is_exam, exchanges.c.started_at.desc()).limit(1)).first()
        if row is not None:
            return _Found(row.id, row.session_id, row.purpose)
    return None


def _latest(conn: sa.Connection, tenant: str, item: NewFeedback, found: _Found | None) -> Any:
    """The row that this delivery would supersede, or repeat."""
    query = sa.select(table).where(
        table.c.tenant == tenant,
        table.c.name == item.name,
        table.c.source == item.source,
        table.c.author.is_(None) if item.author is None else table.c.author == item.author,
    )
    if found is None:
        query = query.where(table.c.state == "parked", table.c.target_id == item.target_id)
    elif found.exchange_id is not None:
        query = query.where(table.c.exchange_id == found.exchange_id)
    else:
        query = query.where(table.c.session_id == found.session_id, table.c.exchange_id.is_(None))
    order = (table.c.received_at.desc(), table.c.id.desc())
    return conn.execute(query.order_by(*order).limit(1)).first()


def _same(row: Any, item: NewFeedback) -> bool:
    """Whether `item` says what `row` says. A time that was not given does not count."""
    said = (item.target_kind.value, item.target_id, item.kind.value, item.name, item.source, item.author)
    stored = (row.target_kind, row.target_id, row.kind, row.name, row.source, row.author)
    if said != stored or row.value != item.value or row.confidence != item.confidence:
        return False
    return item.observed_at is None or row.observed_at == item.observed_at


def _derived_key(item: NewFeedback, superseded_id: str) -> str:
    """The key of a delivery without one: what it says, and which judgement it comes after."""
    said = (item.target_kind, item.target_id, item.kind, item.value, item.name, item.source, item.author)
    content = orjson.dumps([*said, item.confidence, item.observed_at, superseded_id], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(content).hexdigest()


def _receipt(row: Any, repeated: bool) -> Receipt:
    return Receipt(row.id, row.state, repeated, row.exchange_id, row.session_id)
