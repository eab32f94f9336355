"""Feedback in the store: append-only, idempotent and patient (law 5).

It may come before its target (then it is parked), days later, or twice. What holds now is the current view:
of one author's judgements of one name on one target, the last, unless it was replaced by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from nightschool.errors import InputError, RefusedError
from nightschool.feedback.values import NewFeedback, wrong
from nightschool.store.failpoints import fail_point
from nightschool.store.ids import new_id
from nightschool.store.parked import ADMIN_KEYS
from nightschool.store.schema import exchanges
from nightschool.store.schema import feedback as table
from nightschool.store.targets import Found, resolve
from nightschool.types import Feedback, FeedbackKind, Purpose, TargetKind

# Keys live apart by who sent them: nobody without the admin token can occupy, or pass for, an admin's key.
DATA_KEYS = "data:"
IN_PARTS = 500
PARKED_S = 90 * 86_400.0


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


def insert_feedback(
    conn: sa.Connection, tenant: str, item: NewFeedback, admin: bool, now: float, parked_s: float = PARKED_S
) -> Receipt:
    """Store one delivery and match it to its target, or park it for `parked_s`. Call it inside a write of the store.

    Without a key, a delivery that says what its author's last one said is that one again; after a change
    of mind it is new. One that says when it was observed is known by that and by its content.

    Raises:
        RefusedError: the target is an exam's, and this is no outcome from an admin.
        KeyTakenError: the key was used for something else.
        InputError: there is no such tool call, or nothing that could be superseded.
    """
    at = now if item.observed_at is None else item.observed_at
    found = resolve(conn, tenant, item.target, at, admin)
    if found is not None and found.purpose == Purpose.EXAM and not (admin and item.kind == FeedbackKind.OUTCOME):
        raise RefusedError(
            "The feedback was not taken.",
            "Its target belongs to an exam, which takes outcomes from an administrator alone.",
            "Send kind `outcome` with the admin token.",
        )
    if found is not None and found.problem is not None:
        raise wrong(f"tool_call: {found.problem}")
    latest = None if item.key else _latest(conn, tenant, item, found)
    if latest is not None and _same(latest, item):
        return _receipt(latest, repeated=True)
    key = (ADMIN_KEYS if admin else DATA_KEYS) + (item.key or _derived_key(item, latest.id if latest else ""))
    if item.supersedes is not None:
        _check_superseded(conn, tenant, item.supersedes, found)
    times = {"observed_at": at, "received_at": now, "expires_at": now + parked_s}
    row: dict[str, Any] = _row(tenant, item, found, key) | times
    dialect = postgresql if conn.dialect.name == "postgresql" else sqlite
    insert = dialect.insert(table).on_conflict_do_nothing(index_elements=["tenant", "idempotency_key"])
    if conn.execute(insert.returning(table.c.id), row).first() is not None:
        fail_point("feedback.written")
        return Receipt(row["id"], row["state"], False, row["exchange_id"], row["session_id"])
    known = conn.execute(sa.select(table).where(table.c.tenant == tenant, table.c.idempotency_key == key)).one()
    if not _same(known, item):
        raise KeyTakenError(
            "The feedback was not taken.",
            "Its idempotency key belongs to other feedback.",
            "Use a new key for new feedback.",
        )
    return _receipt(known, repeated=True)


def _row(tenant: str, item: NewFeedback, found: Found | None, key: str) -> dict[str, Any]:
    by_id = isinstance(item.tool_call, str)
    position = None if by_id else item.tool_call
    return {
        "tenant": tenant,
        "id": new_id(),
        "idempotency_key": key,
        "target_kind": item.target_kind.value,
        "target_id": item.target_id,
        "turn": item.turn,
        "tool_call": found.tool_call if found else position,
        "tool_call_id": item.tool_call if by_id else None,
        "state": "parked" if found is None else "matched",
        "exchange_id": found.exchange_id if found else None,
        "session_id": found.session_id if found else None,
        "name": item.name,
        "kind": item.kind.value,
        "value": item.value,
        "scale": None if item.scale is None else list(item.scale),
        "source": item.source,
        "author": item.author,
        "confidence": item.confidence,
        "supersedes": item.supersedes,
        "evidence": item.evidence,
        "key_id": item.key_id,
        "origin": item.origin,
    }


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
    """The last of each (target, name, source, author), oldest first, without those that another item supersedes.

    What a superseded item had itself left behind does not come back.
    """
    known = sorted(items, key=_when)
    last = {(_target(item), item.name, item.source, item.author): item for item in known}
    superseded = {(_target(item), item.supersedes) for item in known if item.supersedes is not None}
    current = (item for item in last.values() if (_target(item), item.id) not in superseded)
    return tuple(sorted(current, key=_when))


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
        scale=None if row.scale is None else (row.scale[0], row.scale[1]),
        turn=row.turn,
        tool_call=row.tool_call,
        tool_call_id=row.tool_call_id,
        supersedes=row.supersedes,
        origin=row.origin,
        key_id=row.key_id,
    )


def _target(item: Feedback) -> tuple[Any, ...]:
    """What an item speaks about: an exchange known by several ids is one, and so is a session."""
    if item.exchange_id is not None:
        return (item.exchange_id, item.tool_call) if item.target_kind == TargetKind.TOOL_CALL else (item.exchange_id,)
    if item.target_kind == TargetKind.SESSION and item.session_id is not None:
        return (TargetKind.SESSION, item.session_id)
    return (item.target_kind, item.target_id, item.turn, item.tool_call, item.tool_call_id)


def _when(item: Feedback) -> tuple[float, float, str]:
    received = item.received_at or 0.0
    return (received if item.observed_at is None else item.observed_at, received, item.id)


def _check_superseded(conn: sa.Connection, tenant: str, old_id: str, found: Found | None) -> None:
    """Raises: InputError when there is no such item, or it surely speaks about something else."""
    query = sa.select(table).where(table.c.tenant == tenant, table.c.id == old_id)
    old = conn.execute(query).first()
    if old is None:
        raise wrong("supersedes: no feedback has that id (it is the `id` of a receipt)")
    if found is not None and old.state == "matched":
        about = (old.exchange_id, old.session_id, old.tool_call)
        if about != (found.exchange_id, found.session_id, found.tool_call):
            raise wrong("supersedes: that feedback is about another target")


def _latest(conn: sa.Connection, tenant: str, item: NewFeedback, found: Found | None) -> Any:
    """The row that this delivery would supersede, or repeat."""
    t = table.c
    query = sa.select(table).where(
        t.tenant == tenant,
        t.name == item.name,
        t.source == item.source,
        t.author.is_(None) if item.author is None else t.author == item.author,
    )
    if found is None:
        query = query.where(
            t.state == "parked", t.target_id == item.target_id, _is(t.turn, item.turn), *_call(item.tool_call)
        )
    elif found.exchange_id is not None:
        query = query.where(t.exchange_id == found.exchange_id, _is(t.tool_call, found.tool_call))
    else:
        query = query.where(t.session_id == found.session_id, t.exchange_id.is_(None))
    return conn.execute(query.order_by(t.received_at.desc(), t.id.desc()).limit(1)).first()


def _call(asked: int | str | None) -> tuple[sa.ColumnElement[bool], ...]:
    if isinstance(asked, str):
        return (table.c.tool_call_id == asked,)
    return _is(table.c.tool_call, asked), table.c.tool_call_id.is_(None)


def _is(column: sa.Column[Any], value: int | None) -> sa.ColumnElement[bool]:
    return column.is_(None) if value is None else column == value


def _same(row: Any, item: NewFeedback) -> bool:
    """Whether `item` says what `row` says. A time that was not given does not count."""
    call = row.tool_call_id if row.tool_call_id is not None else row.tool_call
    stored = (row.target_kind, row.target_id, row.turn, call, row.kind, row.name, row.source, row.author)
    said = (item.target_kind.value, item.target_id, item.turn, item.tool_call, item.kind.value)
    if (*said, item.name, item.source, item.author) != stored:
        return False
    scale = None if item.scale is None else list(item.scale)
    details = (item.value, item.confidence, scale, item.supersedes, item.evidence)
    if (row.value, row.confidence, row.scale, row.supersedes, row.evidence) != details:
        return False
    return item.observed_at is None or row.observed_at == item.observed_at


def _derived_key(item: NewFeedback, superseded_id: str) -> str:
    """The key of a delivery without one: what it says and when, else which judgement it comes after."""
    said = (item.target_kind, item.target_id, item.kind, item.value, item.name, item.source, item.author)
    more = (item.turn, item.tool_call, item.scale, item.supersedes, item.evidence)
    after = superseded_id if item.observed_at is None else ""
    content = orjson.dumps([*said, item.confidence, item.observed_at, after, *more], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(content).hexdigest()


def _receipt(row: Any, repeated: bool) -> Receipt:
    return Receipt(row.id, row.state, repeated, row.exchange_id, row.session_id)
