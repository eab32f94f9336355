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
from nightschool.store.dialogue import Dialogue, carries_summary, is_probe, read_dialogue, side_task
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


def find_session(conn: sa.Connection, tenant: str, key: str) -> str | None:
    """The session known by `key`: its own id, or the name its client gave it (the newest)."""
    query = sa.select(sessions.c.id).where(sessions.c.tenant == tenant, _named(key))
    return conn.scalar(query.order_by(sessions.c.last_at.desc()).limit(1))


def place_exchange(conn: sa.Connection, tenant: str, record: Record, nodes: Sequence[Node]) -> Place:
    """Find or make the place of an exchange whose request is `nodes`. Writes nothing.

    Two to four queries, and a few more where an exchange neither continues another nor begins a session.
    """
    caller, dialogue = record.caller, read_dialogue(nodes, record.messages, record.tools)
    name = _name(caller)
    home = _home(conn, tenant, record, name or caller.session_hint)
    if name and home is None:
        return _new_place(conn, tenant, record, dialogue)
    inside = home.id if name and home else None
    world = within(world_of(tenant, record, any_agent=bool(name)), inside, None if inside else _user(caller) or None)
    attempt = earlier_attempt(conn, world, record, nodes)
    if attempt is not None:
        return _retry(conn, tenant, record, dialogue, attempt)
    answered = _answered(conn, world, record)
    complete = caller.previous_response is None or (answered is not None and answered.context_complete)
    row = answered or _continued(conn, world, dialogue, bool(name), home)
    place = None
    if row is not None:
        place = _below(conn, tenant, record, dialogue, row)
    elif home is not None:
        place = _aside(conn, tenant, record, dialogue, home)
    return replace(place or _new_place(conn, tenant, record, dialogue), context_complete=complete)


def touch_session(conn: sa.Connection, tenant: str, place: Place, record: Record) -> None:
    """Make the session's row, or count one more exchange in it; a request that was tried twice counts once."""
    caller, at = record.caller, record.timing.started_at
    if place.replaced is not None:
        same = (exchanges.c.tenant == tenant, exchanges.c.id == place.replaced)
        conn.execute(sa.update(exchanges).where(*same).values(branch=Branch.RETRY.value))
    if not place.is_new:
        more = int(place.retry_of is None)
        _count.many(conn, [{"own": tenant, "session": place.session_id, "more": more, "at": at}])
        if place.begins_main:
            same = (sessions.c.tenant == tenant, sessions.c.id == place.session_id)
            conn.execute(sa.update(sessions).where(*same).values(_main_columns(record, place)))
        return
    row = {
        "tenant": tenant,
        "id": place.session_id,
        "principal": place.principal,
        "split": place.split.value,
        "purpose": caller.purpose.value,
        "exam_id": caller.exam_id,
        "external_key": _name(caller) or caller.session_hint,
        "num_exchanges": 1,
        "first_at": at,
        "last_at": at,
        "parent_session_id": _parent_session(conn, tenant, caller),
        "tags": list(caller.tags) or None,
        "origin": record.origin,
    }
    _insert.many(conn, [_main_columns(record, place) | row])


def _main_columns(record: Record, place: Place) -> Json:
    """What a session's row says of its main branch; of another one while it has none."""
    return {
        "agent": record.caller.agent,
        "preview": _preview(record.messages),
        "policy_version": record.policy_version,
        "opening": place.dialogue.opening if place.begins_main else None,
    }


def _new_place(conn: sa.Connection, tenant: str, record: Record, dialogue: Dialogue) -> Place:
    session_id, caller = new_id(), record.caller
    principal = _user(caller) or session_id
    exam = caller.purpose == Purpose.EXAM
    split = Split.GATE if exam else split_of(split_key(conn, tenant), principal)
    branch = _told(record) or Branch.MAIN
    complete = caller.previous_response is None
    place = Place(session_id, principal, split, True, dialogue, branch=branch, context_complete=complete)
    return replace(place, begins_main=branch == Branch.MAIN)


def _retry(conn: sa.Connection, tenant: str, record: Record, dialogue: Dialogue, attempt: sa.Row) -> Place:
    """Beside the attempt that it repeats. One of the two counts: the later, unless only the earlier succeeded."""
    counts = record.status == "ok" or attempt.status != "ok"
    parent = None
    if attempt.parent_exchange_id is not None:
        row = conn.execute(
            sa.select(*parent_columns()).where(
                exchanges.c.tenant == tenant, exchanges.c.id == attempt.parent_exchange_id
            )
        ).first()
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


def _below(conn: sa.Connection, tenant: str, record: Record, dialogue: Dialogue, row: sa.Row) -> Place:
    """On the branch of the exchange that is continued; what follows a summary is where the summary was made."""
    branch, above = Branch(row.branch), row.parent_exchange_id
    if branch == Branch.COMPACTION:
        query = sa.select(exchanges.c.branch).where(exchanges.c.tenant == tenant, exchanges.c.id == above)
        branch = Branch((conn.scalar(query) if above else None) or Branch.MAIN)
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


def _aside(conn: sa.Connection, tenant: str, record: Record, dialogue: Dialogue, home: sa.Row) -> Place | None:
    """In the session it names, without history: a side branch, or the main one begun anew.

    `None` where only a hint names the session and the same agent begins another conversation.
    """
    summary = _summarized(conn, tenant, record, home.id)
    if summary is not None:
        return _below(conn, tenant, record, dialogue, summary)
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


def _home(conn: sa.Connection, tenant: str, record: Record, name: str | None) -> sa.Row | None:
    """The session that the request names."""
    if not name:
        return None
    world = world_of(tenant, record, any_agent=name == _name(record.caller))
    by_id = HOME_BY_ID.first(conn, name=name, **world.values()) if len(name) == ID_CHARS else None
    return by_id or HOME.first(conn, name=name, **world.values())


def _parent_session(conn: sa.Connection, tenant: str, caller: Caller) -> str | None:
    """The id of the session that a sub-agent's session works for; its name while that is not known."""
    parent = caller.parent_session
    if parent is None or parent == _name(caller):
        return None
    return find_session(conn, tenant, parent) or parent


def _answered(conn: sa.Connection, world: World, record: Record) -> sa.Row | None:
    """The exchange whose reply the request continues by its id."""
    reply = record.caller.previous_response
    if reply is None:
        return None
    values = world.values()
    return CALLED_BY_ID.first(conn, called=reply, **values) or CALLED.first(conn, called=reply, **values)


def _continued(
    conn: sa.Connection, world: World, dialogue: Dialogue, named: bool, home: sa.Row | None
) -> sa.Row | None:
    """The exchange whose reply ends the longest prefix of the dialogue."""
    for place, reply in enumerate(dialogue.replies):
        # nearly always the last reply is a recorded one
        if place and GIVEN.first(conn, tenant=world.tenant, reply=reply) is None:
            continue
        row = _that_replied(conn, world, dialogue, reply, home, named)
        if row is not None:
            return row
    return None


def _that_replied(
    conn: sa.Connection, world: World, dialogue: Dialogue, reply: str, home: sa.Row | None, named: bool
) -> sa.Row | None:
    """Of the exchanges with one history: under the same system messages, of the hinted session, one that nobody
    has continued yet, the newest. After another system message only where one session alone can be meant."""
    values = world.values()
    if named:
        found = REPLIED_WITHIN.all(conn, reply=reply, **values)
    else:
        found = REPLIED.all(conn, reply=reply, system=dialogue.system_hash, **values)
        found = found or REPLIED_ANYWHERE.all(conn, reply=reply, **values)
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
