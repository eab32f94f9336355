"""Readings in the store: append-only, one for each text and version of a reader."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from nightschool.feedback.reading.local import read_locally
from nightschool.feedback.reading.values import READ_KINDS, Note, Place, Polarity, Reading, Reply, Said
from nightschool.feedback.record import feedback_value
from nightschool.store.blobs import in_parts
from nightschool.store.exchanges import session_exchanges
from nightschool.store.matching import content_text
from nightschool.store.readings import readings as table
from nightschool.store.schema import feedback
from nightschool.types import Branch, Exchange, Feedback, Purpose


def insert_readings(conn: sa.Connection, tenant: str, found: Sequence[Reading], now: float) -> int:
    """Store readings that are new; how many were. Call it inside a write of the store."""
    dialect = postgresql if conn.dialect.name == "postgresql" else sqlite
    insert = dialect.insert(table).on_conflict_do_nothing(index_elements=["tenant", "feedback_id", "reader"])
    insert = insert.returning(table.c.feedback_id)  # not every driver tells how many rows an insert made
    return sum(conn.execute(insert, _row(tenant, reading, now)).first() is not None for reading in found)


def load_readings(
    conn: sa.Connection, tenant: str, feedback_ids: Sequence[str], as_of: float | None = None
) -> dict[str, list[Reading]]:
    """All readings of these items, by the item, oldest first; `as_of` leaves out what was read later."""
    found: dict[str, list[Reading]] = defaultdict(list)
    r = table.c
    for some in in_parts(feedback_ids):
        query = sa.select(table).where(r.tenant == tenant, r.feedback_id.in_(some)).order_by(r.read_at, r.reader)
        if as_of is not None:
            query = query.where(r.read_at <= as_of)
        for row in conn.execute(query):
            found[row.feedback_id].append(_reading(row))
    return dict(found)


def find_unread(conn: sa.Connection, tenant: str, reader: str, limit: int) -> list[Feedback]:
    """Texts and corrections that `reader` has not read, oldest first: those whose target is known."""
    f, r = feedback.c, table.c
    read = sa.select(r.feedback_id).where(r.tenant == tenant, r.reader == reader, r.feedback_id == f.id)
    query = sa.select(feedback).where(f.tenant == tenant, f.state == "matched", f.kind.in_(map(str, READ_KINDS)))
    query = query.where(~read.exists())
    return [feedback_value(row) for row in conn.execute(query.order_by(f.received_at, f.id).limit(limit))]


def newest_texts(conn: sa.Connection, tenant: str, limit: int) -> list[Feedback]:
    """The newest texts and corrections whose target is known, oldest first."""
    f = feedback.c
    query = sa.select(feedback).where(f.tenant == tenant, f.state == "matched", f.kind.in_(map(str, READ_KINDS)))
    rows = conn.execute(query.order_by(f.received_at.desc(), f.id.desc()).limit(limit)).all()
    return [feedback_value(row) for row in reversed(rows)]


def said_in(conn: sa.Connection, tenant: str, items: Iterable[Feedback]) -> list[Said]:
    """Items as they are read, each with the replies of its session; what has no words is left out."""
    replies: dict[str, tuple[Reply, ...]] = {}
    found: list[Said | None] = []
    for item in items:
        session_id = item.session_id or ""
        if session_id not in replies:
            replies[session_id] = replies_of(session_exchanges(conn, tenant, session_id))
        found.append(said_of(item, replies[session_id]))
    return [one for one in found if one is not None]


def said_of(item: Feedback, replies: tuple[Reply, ...]) -> Said | None:
    """An item as it is read; `None` where it has no words."""
    text = text_of(item)
    if item.kind not in READ_KINDS or text is None:
        return None
    return Said(item.id, item.kind, text, item.source, item.exchange_id, replies)


def text_of(item: Feedback) -> str | None:
    """The words of a text, or of what a correction says instead; `None` where there are none."""
    text = content_text(item.value.get("content")) if isinstance(item.value, dict) else item.value
    return text if isinstance(text, str) and text.strip() else None


def replies_of(exchanges: Iterable[Exchange]) -> tuple[Reply, ...]:
    """The replies of the main branch, numbered as feedback numbers them that names a turn."""
    main = [e for e in exchanges if e.branch == Branch.MAIN and e.status != "error" and e.purpose == Purpose.SERVE]
    texts = ((e, content_text(e.choices[0].message.get("content")) if e.choices else "") for e in main)
    return tuple(Reply(exchange.id, turn, text) for turn, (exchange, text) in enumerate(texts, start=1))


def current_readings(conn: sa.Connection, tenant: str, said: Sequence[Said]) -> dict[str, Reading]:
    """What holds of each text: the newest judge's reading with what only the rules saw, else that of the rules.

    The rules read again, so that nothing has to have been stored. A text that they see steering its reader stays
    without hint and wish, whatever a judge made of it.
    """
    stored = load_readings(conn, tenant, [one.feedback_id for one in said])
    found: dict[str, Reading] = {}
    for one in said:
        local = read_locally(one)
        judged = [reading for reading in stored.get(one.feedback_id, ()) if reading.votes]
        found[one.feedback_id] = local if not judged or Note.STEERS in local.notes else joined(judged[-1], local)
    return found


def joined(judged: Reading, local: Reading) -> Reading:
    """A judge's reading; wish, hint and target of the rules where it has none."""
    return Reading(
        judged.feedback_id,
        judged.reader,
        judged.polarity,
        judged.score,
        judged.probability,
        judged.wish or local.wish,
        judged.hint or local.hint,
        judged.place or local.place,
        judged.notes,
        judged.votes,
        judged.made,
    )


def _row(tenant: str, reading: Reading, now: float) -> dict[str, Any]:
    place = reading.place
    return {
        "tenant": tenant,
        "feedback_id": reading.feedback_id,
        "reader": reading.reader,
        "polarity": reading.polarity.value,
        "score": reading.score,
        "wish": reading.wish,
        "hint": reading.hint,
        "exchange_id": None if place is None else place.exchange_id,
        "turn": None if place is None else place.turn,
        "notes": list(reading.notes),
        "votes": list(reading.votes),
        "made": reading.made,
        "read_at": now,
    }


def _reading(row: Any) -> Reading:
    return Reading(
        row.feedback_id,
        row.reader,
        Polarity(row.polarity),
        row.score,
        None,
        row.wish,
        row.hint,
        None if row.exchange_id is None else Place(row.exchange_id, row.turn),
        tuple(row.notes),
        tuple(row.votes),
        row.made,
    )
