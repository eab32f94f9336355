"""Which session an exchange belongs to, which exchange it continues, and for whom it counts.

A session named by its client is that session, whatever the messages say. Otherwise an exchange joins the
session of the exchange whose reply it carries in its history: the longest prefix of its messages that is
some exchange's request and reply (by rolling match hash). Exams never mix with service, nor one exam's
candidate with its incumbent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa

from nightschool.store.blobs import in_parts
from nightschool.store.ids import new_id
from nightschool.store.matching import content_text
from nightschool.store.records import Caller, Record
from nightschool.store.schema import exchanges, sessions
from nightschool.store.splits import split_key, split_of
from nightschool.store.tree import Node, well_formed
from nightschool.types import Json, Purpose, Split

PREVIEW_CHARS = 200
NUM_CANDIDATES = 32  # exchanges with one and the same history that are weighed against each other


class Parent(NamedTuple):
    """The exchange that is continued: its id, and its context (`prompts.py`) where that is known."""

    exchange_id: str
    num_context_tokens: int | None
    context_hash: str | None


@dataclass(frozen=True, slots=True)
class Place:
    """Where an exchange goes. `is_new` when its session has no row yet."""

    session_id: str
    principal: str
    split: Split
    is_new: bool
    parent: Parent | None = None


def find_session(conn: sa.Connection, tenant: str, key: str) -> str | None:
    """The session known by `key`: its own id, or the name its client gave it (the newest)."""
    named = sa.or_(sessions.c.id == key, sessions.c.external_key == key)
    query = sa.select(sessions.c.id).where(sessions.c.tenant == tenant, named)
    return conn.scalar(query.order_by(sessions.c.last_at.desc()).limit(1))


def place_exchange(conn: sa.Connection, tenant: str, record: Record, nodes: Sequence[Node]) -> Place:
    """Find or make the place of an exchange whose request is `nodes`. Writes nothing."""
    caller = record.caller
    user = well_formed(caller.header_user or caller.body_user or "")
    session_id: str | None = None
    if caller.session:
        named = sa.or_(sessions.c.id == caller.session, sessions.c.external_key == caller.session)
        query = sa.select(sessions.c.id).where(_one_world(tenant, record, sessions), named)
        session_id = conn.scalar(query.order_by(sessions.c.last_at.desc()).limit(1))
        if session_id is None:
            return _new_place(conn, tenant, caller, user)
    same = [] if session_id is None else [exchanges.c.session_id == session_id]
    if user and session_id is None:
        same.append(exchanges.c.principal == user)
    row = _continued(conn, sa.and_(_one_world(tenant, record, exchanges), *same), nodes)
    if row is not None:
        parent = Parent(row.id, row.num_context_tokens, row.context_hash)
        return Place(row.session_id, row.principal, Split(row.split), False, parent)
    if session_id is None:
        return _new_place(conn, tenant, caller, user)
    columns = (sessions.c.principal, sessions.c.split)
    row = conn.execute(sa.select(*columns).where(sessions.c.tenant == tenant, sessions.c.id == session_id)).one()
    return Place(session_id, row.principal, Split(row.split), False)


def touch_session(conn: sa.Connection, tenant: str, place: Place, record: Record) -> None:
    """Make the session's row, or count one more exchange in it."""
    caller, at = record.caller, record.timing.started_at
    if not place.is_new:
        counted = {
            "num_exchanges": sessions.c.num_exchanges + 1,
            "first_at": sa.case((sessions.c.first_at > at, at), else_=sessions.c.first_at),
            "last_at": sa.case((sessions.c.last_at < at, at), else_=sessions.c.last_at),
        }
        same = (sessions.c.tenant == tenant, sessions.c.id == place.session_id)
        conn.execute(sa.update(sessions).where(*same).values(counted))
        return
    row = {
        "tenant": tenant,
        "id": place.session_id,
        "agent": caller.agent,
        "principal": place.principal,
        "split": place.split.value,
        "purpose": caller.purpose.value,
        "exam_id": caller.exam_id,
        "external_key": caller.session,
        "preview": _preview(record.messages),
        "policy_version": record.policy_version,
        "num_exchanges": 1,
        "first_at": at,
        "last_at": at,
        "parent_session_id": caller.parent_session,
        "tags": list(caller.tags) or None,
        "origin": record.origin,
    }
    conn.execute(sa.insert(sessions), row)


def _new_place(conn: sa.Connection, tenant: str, caller: Caller, user: str) -> Place:
    session_id = new_id()
    principal = user or session_id
    exam = caller.purpose == Purpose.EXAM
    split = Split.GATE if exam else split_of(split_key(conn, tenant), principal)
    return Place(session_id, principal, split, True)


def _one_world(tenant: str, record: Record, table: sa.Table) -> sa.ColumnElement[bool]:
    """Rows an exchange may share a session with. An exam compares versions, so it keeps them apart."""
    caller = record.caller
    rules = [
        table.c.tenant == tenant,
        table.c.agent == caller.agent,
        table.c.purpose == caller.purpose.value,
        table.c.exam_id == caller.exam_id,
    ]
    if caller.purpose == Purpose.EXAM:
        rules.append(table.c.policy_version == record.policy_version)
    return sa.and_(*rules)


def _continued(conn: sa.Connection, world: sa.ColumnElement[bool], nodes: Sequence[Node]) -> sa.Row | None:
    """The exchange whose reply ends the longest prefix of `nodes`, with its session's principal and split."""
    replies = [node.match_hash for node in reversed(nodes) if node.role == "assistant"]
    if not replies:
        return None
    # nearly always the last reply is a recorded one; only where it is not are the others looked up
    found = _that_replied(conn, world, replies[0])
    return found or next((_that_replied(conn, world, reply) for reply in _given(conn, world, replies[1:])), None)


def _that_replied(conn: sa.Connection, world: sa.ColumnElement[bool], reply: str) -> sa.Row | None:
    """Of the exchanges with one history: one that nobody has continued yet, else the newest."""
    of_session = sa.and_(sessions.c.tenant == exchanges.c.tenant, sessions.c.id == exchanges.c.session_id)
    query = (
        sa.select(
            exchanges.c.id,
            exchanges.c.session_id,
            exchanges.c.started_at,
            exchanges.c.num_context_tokens,
            exchanges.c.context_hash,
            sessions.c.last_at,
            sessions.c.principal,
            sessions.c.split,
        )
        .join(sessions, of_session)
        .where(world, exchanges.c.reply_match_hash == reply)
        .order_by(exchanges.c.started_at.desc())
        .limit(NUM_CANDIDATES)
    )
    found = conn.execute(query).all()
    return next((row for row in found if row.started_at >= row.last_at), found[0] if found else None)


def _given(conn: sa.Connection, world: sa.ColumnElement[bool], replies: Sequence[str]) -> Iterator[str]:
    """Those of `replies` that some exchange gave, in order."""
    column = exchanges.c.reply_match_hash
    for some in in_parts(replies):
        found = set(conn.scalars(sa.select(column).where(world, column.in_(some)).distinct()))
        yield from (reply for reply in some if reply in found)


def _preview(messages: Sequence[Json]) -> str:
    texts = (content_text(m.get("content")) for m in messages if m.get("role") == "user")
    return well_formed(next(texts, "")[:PREVIEW_CHARS])
