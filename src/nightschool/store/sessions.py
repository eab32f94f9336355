"""Which session an exchange belongs to, which exchange it continues, and which branch it is on.

A session named by its client is that session, whatever the messages say. Otherwise an exchange joins the
session of the exchange whose reply it names or carries in its history: the longest prefix of its dialogue that
is some exchange's request and reply. A hint (a cache key, a trace) joins what evidently belongs together, and
never two conversations of one agent. Exams never mix with service, nor one exam's candidate with its incumbent.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import sqlalchemy as sa

from nightschool.store.attempts import earlier_attempt
from nightschool.store.dialogue import Dialogue, carries_summary, is_probe, side_task
from nightschool.store.foresight import Foresight
from nightschool.store.ids import new_id
from nightschool.store.matching import content_text
from nightschool.store.prepared import Prepared, insert_into
from nightschool.store.records import Caller, Record
from nightschool.store.schema import blobs, choices, exchanges, messages, sessions
from nightschool.store.splits import split_key, split_of
from nightschool.store.tree import Node, well_formed, with_content
from nightschool.store.worlds import (
    CALLED,
    CALLED_BY_ID,
    GIVEN,
    HOME,
    HOME_BY_ID,
    REPLIED,
    REPLIED_ANYWHERE,
    REPLIED_WITHIN,
    World,
    candidates,
    parent_columns,
    within,
    world_of,
)
from nightschool.types import Branch, Json, Purpose, Split

PREVIEW_CHARS = 200
ID_CHARS = 36

_insert = insert_into(sessions)
_count = Prepared(
    sa.update(sessions)
    .where(sessions.c.tenant == sa.bindparam("own"), sessions.c.id == sa.bindparam("session"))
    .values(
        num_exchanges=sessions.c.num_exchanges + sa.bindparam("more", type_=sa.Integer()),
        first_at=sa.case((sessions.c.first_at > sa.bindparam("at"), sa.bindparam("at")), else_=sessions.c.first_at),
        last_at=sa.case((sessions.c.last_at < sa.bindparam("at"), sa.bindparam("at")), else_=sessions.c.last_at),
    )
)


class Parent(NamedTuple):
    """The exchange that is continued: its id, and its context (`prompts.py`) where that is known."""

    exchange_id: str
    num_context_tokens: int | None
    context_hash: str | None


@dataclass(frozen=True, slots=True)
class Place:
    """Where an exchange goes. `is_new` when its session has no row yet, `begins_main` when this is the first
    of its main branch.

    `retry_of` is the first attempt at the same request; `replaced` the attempt that counts no more, now that
    this one is there. `context_complete` is False when the exchange continues one that was never seen.
    `parent_session_id` is that of a sub-agent's new session; a name while the session is not known.
    """

    session_id: str
    principal: str
    split: Split
    is_new: bool
    dialogue: Dialogue
    parent: Parent | None = None
    branch: Branch = Branch.MAIN
    begins_main: bool = False
    retry_of: str | None = None
    replaced: str | None = None
    context_complete: bool = True
    parent_session_id: str | None = None


def find_session(conn: sa.Connection, tenant: str, key: str) -> str | None:
    """The session known by `key`: its own id, or the name its client gave it (the newest)."""
    query = sa.select(sessions.c.id).where(sessions.c.tenant == tenant, _named(key))
    return conn.scalar(query.order_by(sessions.c.last_at.desc()).limit(1))


def look_ahead(ahead: Foresight, tenant: str, asked: Sequence[tuple[Record, Sequence[Node], Dialogue]]) -> None:
    """What `place_exchange` asks about each of these first."""
    ahead.look(
        tenant,
        [nodes[-1].hash for _, nodes, _ in asked if nodes],
        [dialogue.replies[0] for _, _, dialogue in asked if dialogue.replies],
        [name for record, _, _ in asked if (name := known_as(record.caller))],
    )


def place_exchange(ahead: Foresight, tenant: str, record: Record, nodes: Sequence[Node], dialogue: Dialogue) -> Place:
    """Find or make the place of an exchange whose request is `nodes`. Writes nothing but what waits.

    Usually everything is foreseen; a few queries where an exchange neither continues another nor begins a session.
    """
    place, row = _find_place(ahead, tenant, record, nodes, dialogue)
    before: tuple[float, str | None] | None = None
    if place.is_new:
        before = record.timing.started_at, dialogue.opening if place.begins_main else None
        ahead.names.pop(known_as(record.caller) or "", None)
    elif row is not None and not place.begins_main:
        before = row.last_at, row.opening
    ahead.joined(place.session_id, before, record.timing.started_at)
    return place


def _find_place(
    ahead: Foresight, tenant: str, record: Record, nodes: Sequence[Node], dialogue: Dialogue
) -> tuple[Place, sa.Row | None]:
    """The place, and the exchange that is continued there."""
    caller = record.caller
    name = _name(caller)
    home = _home(ahead, tenant, record, known_as(caller))
    if name and home is None:
        return _new_place(ahead, tenant, record, dialogue), None
    inside = home.id if name and home else None
    world = within(world_of(tenant, record, any_agent=bool(name)), inside, None if inside else _user(caller) or None)
    attempt = earlier_attempt(ahead, world, record, nodes)
    if attempt is not None:
        return _retry(ahead, tenant, record, dialogue, attempt), None
    answered = _answered(ahead, world, record)
    complete = caller.previous_response is None or (answered is not None and answered.context_complete)
    row = answered or _continued(ahead, world, dialogue, bool(name), home)
    place = None
    if row is not None:
        place = _below(ahead, tenant, record, dialogue, row)
    elif home is not None:
        place = _aside(ahead, tenant, record, dialogue, home)
    place = place or _new_place(ahead, tenant, record, dialogue)
    return (place if place.context_complete == complete else replace(place, context_complete=complete)), row


def touch_sessions(conn: sa.Connection, tenant: str, placed: Sequence[tuple[Record, Place]]) -> None:
    """Make the sessions' rows, or count one more exchange in them; a request that was tried twice counts once."""
    _insert.many(conn, [_session_row(tenant, record, place) for record, place in placed if place.is_new])
    old = [(record, place) for record, place in placed if not place.is_new]
    _count.many(
        conn,
        [
            {
                "own": tenant,
                "session": place.session_id,
                "more": int(place.retry_of is None),
                "at": record.timing.started_at,
            }
            for record, place in old
        ],
    )
    for record, place in old:
        if place.replaced is not None:
            same = (exchanges.c.tenant == tenant, exchanges.c.id == place.replaced)
            conn.execute(sa.update(exchanges).where(*same).values(branch=Branch.RETRY.value))
        if place.begins_main:
            same = (sessions.c.tenant == tenant, sessions.c.id == place.session_id)
            conn.execute(sa.update(sessions).where(*same).values(_main_columns(record, place)))


def known_as(caller: Caller) -> str | None:
    """The name or hint under which a new session of this caller is stored."""
    return _name(caller) or caller.session_hint


def _session_row(tenant: str, record: Record, place: Place) -> Json:
    caller, at = record.caller, record.timing.started_at
    return _main_columns(record, place) | {
        "tenant": tenant,
        "id": place.session_id,
        "principal": place.principal,
        "split": place.split.value,
        "purpose": caller.purpose.value,
        "exam_id": caller.exam_id,
        "external_key": known_as(caller),
        "num_exchanges": 1,
        "first_at": at,
        "last_at": at,
        "parent_session_id": place.parent_session_id,
        "tags": list(caller.tags) or None,
        "origin": record.origin,
    }


def _main_columns(record: Record, place: Place) -> Json:
    """What a session's row says of its main branch; of another one while it has none."""
    return {
        "agent": record.caller.agent,
        "preview": _preview(record.messages),
        "policy_version": record.policy_version,
        "opening": place.dialogue.opening if place.begins_main else None,
    }


def _new_place(ahead: Foresight, tenant: str, record: Record, dialogue: Dialogue) -> Place:
    session_id, caller = new_id(), record.caller
    principal = _user(caller) or session_id
    exam = caller.purpose == Purpose.EXAM
    split = Split.GATE if exam else split_of(split_key(ahead.conn, tenant), principal)
    branch = _told(record) or Branch.MAIN
    return Place(
        session_id,
        principal,
        split,
        True,
        dialogue,
        branch=branch,
        begins_main=branch == Branch.MAIN,
        context_complete=caller.previous_response is None,
        parent_session_id=_parent_session(ahead, tenant, caller),
    )


def _retry(ahead: Foresight, tenant: str, record: Record, dialogue: Dialogue, attempt: sa.Row) -> Place:
    """Beside the attempt that it repeats. One of the two counts: the later, unless only the earlier succeeded."""
    counts = record.status == "ok" or attempt.status != "ok"
    parent = None
    if attempt.parent_exchange_id is not None:
        mine = (exchanges.c.tenant == tenant, exchanges.c.id == attempt.parent_exchange_id)
        row = ahead.now().execute(sa.select(*parent_columns()).where(*mine)).first()
        parent = None if row is None else Parent(*row)
    return Place(
        attempt.session_id,
        attempt.principal,
        Split(attempt.split),
        False,
        dialogue,
        parent,
        Branch(attempt.branch) if counts else Branch.RETRY,
        retry_of=attempt.retry_of or attempt.id,
        replaced=attempt.id if counts else None,
        context_complete=attempt.context_complete,
    )


def _below(ahead: Foresight, tenant: str, record: Record, dialogue: Dialogue, row: sa.Row) -> Place:
    """On the branch of the exchange that is continued; what follows a summary is where the summary was made."""
    branch, above = Branch(row.branch), row.parent_exchange_id
    if branch == Branch.COMPACTION:
        query = sa.select(exchanges.c.branch).where(exchanges.c.tenant == tenant, exchanges.c.id == above)
        branch = Branch((ahead.now().scalar(query) if above else None) or Branch.MAIN)
    if branch != Branch.SUB_AGENT:
        branch = Branch.MAIN
    branch = _told(record) or branch
    return Place(
        row.session_id,
        row.principal,
        Split(row.split),
        False,
        dialogue,
        Parent(row.id, row.num_context_tokens, row.context_hash),
        branch,
        begins_main=branch == Branch.MAIN and row.opening is None,
    )


def _aside(ahead: Foresight, tenant: str, record: Record, dialogue: Dialogue, home: sa.Row) -> Place | None:
    """In the session it names, without history: a side branch, or the main one begun anew.

    `None` where only a hint names the session and the same agent begins another conversation.
    """
    summary = _summarized(ahead.now(), tenant, record, home.id)
    if summary is not None:
        return _below(ahead, tenant, record, dialogue, summary)
    told = _told(record)
    same = home.opening in (None, dialogue.opening)
    if same and told is None and not _name(record.caller):
        return None
    branch = told or (Branch.MAIN if same else Branch.SUB_AGENT)
    begins = branch == Branch.MAIN and home.opening is None
    return Place(home.id, home.principal, Split(home.split), False, dialogue, None, branch, begins)


def _told(record: Record) -> Branch | None:
    """The branch that the record, its caller or its instruction names."""
    caller = record.caller
    helping = Branch.SUB_AGENT if caller.parent_session and not caller.session else None
    return record.branch or caller.branch or helping or side_task(record.messages, record.tools) or _probing(record)


def _probing(record: Record) -> Branch | None:
    first = record.choices[0] if len(record.choices) == 1 else None
    if first is None or not is_probe(record.messages, record.tools, first.message, first.finish_reason):
        return None
    return Branch.TITLE


def _name(caller: Caller) -> str | None:
    """The name of the session; a sub-agent without one is in the session it works for."""
    return caller.session or caller.parent_session


def _user(caller: Caller) -> str:
    return well_formed(caller.header_user or caller.body_user or "")


def _named(name: str) -> sa.ColumnElement[bool]:
    return sa.or_(sessions.c.id == name, sessions.c.external_key == name)


def _home(ahead: Foresight, tenant: str, record: Record, name: str | None) -> sa.Row | None:
    """The session that the request names."""
    if not name:
        return None
    world = world_of(tenant, record, any_agent=name == _name(record.caller))
    rows = ahead.called(name)
    if rows is not None:
        return next((row for row in rows if world.holds(row)), None)
    by_id = HOME_BY_ID.first(ahead.now(), name=name, **world.values()) if len(name) == ID_CHARS else None
    return by_id or HOME.first(ahead.now(), name=name, **world.values())


def _parent_session(ahead: Foresight, tenant: str, caller: Caller) -> str | None:
    """The id of the session that a sub-agent's session works for; its name while that is not known."""
    parent = caller.parent_session
    if parent is None or parent == _name(caller):
        return None
    return find_session(ahead.now(), tenant, parent) or parent


def _answered(ahead: Foresight, world: World, record: Record) -> sa.Row | None:
    """The exchange whose reply the request continues by its id."""
    reply = record.caller.previous_response
    if reply is None:
        return None
    conn, values = ahead.now(), world.values()
    return CALLED_BY_ID.first(conn, called=reply, **values) or CALLED.first(conn, called=reply, **values)


def _continued(ahead: Foresight, world: World, dialogue: Dialogue, named: bool, home: sa.Row | None) -> sa.Row | None:
    """The exchange whose reply ends the longest prefix of the dialogue."""
    for reply in dialogue.replies:
        found = _that_replied(ahead, world, dialogue.system_hash, reply, named)
        row = _meant(found, dialogue, home, named)
        if row is not None:
            return row
    return None


def _that_replied(ahead: Foresight, world: World, system_hash: str, reply: str, named: bool) -> list[sa.Row]:
    """The exchanges with one history, newest first; only those under these system messages if there are any."""
    found = ahead.that_replied(reply)
    if found is not None:
        return [row for row in found if world.holds(row)]
    conn, values = ahead.now(), world.values()
    if GIVEN.first(conn, tenant=world.tenant, reply=reply) is None:
        return []
    if named:
        return REPLIED_WITHIN.all(conn, reply=reply, **values)
    under = REPLIED.all(conn, reply=reply, system=system_hash, **values)
    return under or REPLIED_ANYWHERE.all(conn, reply=reply, **values)


def _meant(found: Sequence[sa.Row], dialogue: Dialogue, home: sa.Row | None, named: bool) -> sa.Row | None:
    """Of exchanges with one history: under the same system messages, of the hinted session, one that nobody has
    continued yet, the newest. After another system message only where one session alone can be meant."""
    same = [row for row in found if row.system_hash == dialogue.system_hash]
    if not found or (not same and not named and len({row.session_id for row in found}) > 1):
        return None
    hinted = None if home is None else home.id
    return max(same or found, key=lambda row: (row.session_id == hinted, row.started_at >= row.last_at))


def _summarized(conn: sa.Connection, tenant: str, record: Record, session_id: str) -> sa.Row | None:
    """The session's last compaction, if the request goes on from what it wrote."""
    c = choices.c
    reply = sa.and_(c.tenant == exchanges.c.tenant, c.exchange_id == exchanges.c.id, c.index == 0)
    node = sa.and_(messages.c.tenant == c.tenant, messages.c.hash == c.message_hash)
    data, blob = with_content()
    query = (
        candidates(data)
        .join(choices, reply)
        .join(messages, node)
        .outerjoin(blobs, blob)
        .where(
            exchanges.c.tenant == tenant,
            exchanges.c.session_id == session_id,
            exchanges.c.branch == Branch.COMPACTION.value,
        )
    )
    row = conn.execute(query.order_by(exchanges.c.started_at.desc()).limit(1)).first()
    if row is None:
        return None
    return row if carries_summary(record.messages, json.loads(row.data)) else None


def _preview(messages: Sequence[Json]) -> str:
    texts = (content_text(m.get("content")) for m in messages if m.get("role") == "user")
    return well_formed(next(texts, "")[:PREVIEW_CHARS])
