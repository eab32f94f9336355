"""Conversations into the store: what is there already is merged, everything else is taken.

An exchange is there when its id is (imports derive it from what the call is), or when an exchange with the same
upstream id gave the same reply: the gateway may have recorded what a tool logged as well.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import orjson
import sqlalchemy as sa

from nightschool.access.privacy import Privacy
from nightschool.access.redaction import redact, redactor
from nightschool.errors import RefusedError
from nightschool.feedback.private import hidden
from nightschool.feedback.record import KeyTakenError, insert_feedback
from nightschool.feedback.values import NewFeedback
from nightschool.imports.values import Conversation, Judgement, Turn, exchange_id
from nightschool.store.blobs import stored
from nightschool.store.database import Store
from nightschool.store.insertion import insert_exchanges
from nightschool.store.matching import match_key
from nightschool.store.parked import ADMIN_KEYS
from nightschool.store.records import Record, Timing
from nightschool.store.schema import blobs, choices, exchanges, feedback, import_items, messages, sessions
from nightschool.store.sessions import find_session
from nightschool.store.tree import canonical, put_messages, with_content
from nightschool.types import TargetKind

TURNS_A_WRITE = 16  # a write stays well below what the other writer of the store may wait
TIMELESS = "time of import"


@dataclass(frozen=True, slots=True)
class Taking:
    """One file on its way into the store. `agent` overrides what the log says, `fallback` is for logs that say none.

    `privacy` says what is removed before anything is stored. `sessions` holds those that were counted.
    """

    store: Store | None
    import_id: str
    agent: str | None
    fallback: str
    now: float
    privacy: Privacy
    dry: bool = False
    sessions: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Told:
    """What became of one conversation: counts of sessions, exchanges and feedback."""

    taken: Counter[str] = field(default_factory=Counter)
    merged: Counter[str] = field(default_factory=Counter)
    parked: int = 0
    refused: list[str] = field(default_factory=list)


def store_conversation(taking: Taking, conversation: Conversation) -> Told:
    """Store what is new of a conversation, a few turns at a time; run again, it goes on where it stopped."""
    told = Told()
    store = taking.store
    if store is None:  # a dry run where nothing was ever stored
        return _all_new(taking, conversation)
    with store.read() as conn:
        if conversation.digest in stored(conn, import_items.c.digest, store.tenant, [conversation.digest]):
            told.merged = _all_new(taking, conversation).taken
            return told
    known: dict[str, str] = {}
    for start in range(0, len(conversation.turns), TURNS_A_WRITE):
        part = conversation.turns[start : start + TURNS_A_WRITE]
        if taking.dry:
            with store.read() as conn:
                known = _known(conn, store.tenant, conversation, part)
                told.merged["exchanges"] += len(known)
                told.taken["exchanges"] += len(part) - len(known)
            continue
        known |= store.write(lambda conn, part=part, start=start: _put(conn, taking, conversation, part, start, told))
    if taking.dry:
        with store.read() as conn:
            _count_feedback(conn, store.tenant, conversation, told)
            there = find_session(conn, store.tenant, _session_name(conversation)) is not None
            _count_session(taking, conversation, told.merged if there or told.merged["exchanges"] else told.taken)
    else:
        store.write(lambda conn: _finish(conn, taking, conversation, known, told))
    return told


def _put(
    conn: sa.Connection, taking: Taking, conversation: Conversation, part: Sequence[Turn], start: int, told: Told
) -> dict[str, str]:
    """Insert what is new of `part`; the exchange of each of its turns."""
    tenant = _tenant(taking)
    known = _known(conn, tenant, conversation, part)
    new: dict[str, Record] = {}
    same: dict[tuple[str, bytes], str] = {}
    for place, turn in enumerate(part, start):
        if turn.key in known:
            continue
        record = _record(conn, taking, conversation, turn, place)
        if record.upstream_id and record.choices:  # told twice in one log
            said = (record.upstream_id, match_key(record.choices[0].message))
            known[turn.key] = same.setdefault(said, record.id)
        else:
            known[turn.key] = record.id
        if known[turn.key] == record.id:
            new.setdefault(record.id, record)
    insert_exchanges(conn, tenant, list(new.values()))
    told.taken["exchanges"] += len(new)
    told.merged["exchanges"] += len(part) - len(new)
    return known


def _known(conn: sa.Connection, tenant: str, conversation: Conversation, part: Sequence[Turn]) -> dict[str, str]:
    """The exchange of each turn that is stored already, by the turn's key."""
    ids = {turn.key: _id(conversation, turn) for turn in part}
    there = stored(conn, exchanges.c.id, tenant, list(ids.values()))
    known = {key: found for key, found in ids.items() if found in there}
    for turn in part:
        if turn.key not in known and turn.record.upstream_id and turn.record.choices:
            same = _same_reply(conn, tenant, turn.record)
            if same is not None:
                known[turn.key] = same
    return known


def _same_reply(conn: sa.Connection, tenant: str, record: Record) -> str | None:
    """The exchange that has this record's upstream id and gave its reply."""
    e, c, m = exchanges.c, choices.c, messages.c
    data, blob = with_content()
    query = (
        sa.select(e.id, data)
        .join(choices, sa.and_(c.tenant == e.tenant, c.exchange_id == e.id, c.index == record.choices[0].index))
        .join(messages, sa.and_(m.tenant == e.tenant, m.hash == c.message_hash))
        .outerjoin(blobs, blob)
        .where(e.tenant == tenant, e.upstream_id == record.upstream_id)
    )
    mine = match_key(record.choices[0].message)
    for row in conn.execute(query):
        if match_key(orjson.loads(row.data)) == mine:
            return row.id
    return None


def _record(conn: sa.Connection, taking: Taking, conversation: Conversation, turn: Turn, place: int) -> Record:
    """The turn as the store takes it. Its request is spelled from the messages, since the log has no such bytes."""
    record, path = turn.record, turn.above.path() if turn.above else []
    request = {"model": record.policy_version, "messages": path} | ({"tools": record.tools} if record.tools else {})
    caller = record.caller
    if caller.parent_session:
        parent = find_session(conn, _tenant(taking), caller.parent_session)
        caller = replace(caller, parent_session=parent or caller.parent_session)
    caller = replace(caller, agent=taking.agent or caller.agent or taking.fallback)
    at = taking.now + place / 1000 if turn.at is None else turn.at
    whole = replace(
        record,
        id=_id(conversation, turn),
        caller=caller,
        timing=Timing(at, record.timing.duration_ms, record.timing.first_byte_ms),
        request_body=canonical(request),
        messages=tuple(path),
        flags=record.flags if turn.at is not None or TIMELESS in record.flags else (*record.flags, TIMELESS),
        origin=taking.import_id,
    )
    return redact(whole, taking.privacy)


def _finish(conn: sa.Connection, taking: Taking, conversation: Conversation, known: dict[str, str], told: Told) -> None:
    """What comes after the turns: the rest of the messages, the judgements, and the log's own bytes."""
    tenant = _tenant(taking)
    clean = redactor(taking.privacy)
    session = None
    if known:
        s, e = sessions.c, exchanges.c
        own = sa.and_(s.tenant == e.tenant, s.id == e.session_id)
        query = sa.select(s.id, s.origin).join(exchanges, own)
        first = next(iter(known.values()))
        session, origin = conn.execute(query.where(e.tenant == tenant, e.id == first)).one()
        _count_session(taking, conversation, told.taken if origin == taking.import_id else told.merged)
    for judgement in conversation.judgements:
        _judge(conn, taking, judgement, known, session, told)
    leaf = None
    if conversation.tail is not None:
        leaf = put_messages(conn, tenant, [clean.value(message) for message in conversation.tail.path()])
    row = {
        "tenant": tenant,
        "digest": conversation.digest,
        "key": conversation.key,
        "import_id": taking.import_id,
        "place": conversation.place,
        "session_id": session,
        "raw": zlib.compress(clean.body(conversation.raw)),
        "leaf": leaf,
    }
    conn.execute(sa.insert(import_items), row)


def _judge(
    conn: sa.Connection,
    taking: Taking,
    judgement: Judgement,
    known: dict[str, str],
    session: str | None,
    told: Told,
) -> None:
    item, tenant = replace(judgement.item, origin=taking.import_id), _tenant(taking)
    if judgement.session is not None:
        session = find_session(conn, tenant, judgement.session)
    target = known.get(judgement.turn or "") or _by_external_key(conn, tenant, judgement.external_keys)
    if judgement.session is not None and session is not None:
        item = replace(item, target_kind=TargetKind.SESSION, target_id=session)
    elif target is not None:
        kind = TargetKind.EXCHANGE if item.tool_call is None else TargetKind.TOOL_CALL
        item = replace(item, target_kind=kind, target_id=target)
    elif item.target_kind == TargetKind.SESSION and session is not None:
        item = replace(item, target_id=session)
    if _has_key(conn, tenant, item.key) if item.key else _is_told(conn, tenant, item):
        told.merged["feedback"] += 1
        return
    try:
        receipt = insert_feedback(conn, tenant, hidden(item, taking.privacy), True, time.time())
    except (RefusedError, KeyTakenError) as error:
        told.refused.append(f"feedback: {error.why}")
        return
    (told.merged if receipt.repeated else told.taken)["feedback"] += 1
    told.parked += receipt.state == "parked" and not receipt.repeated


def _has_key(conn: sa.Connection, tenant: str, key: str) -> bool:
    """Whether that judgement came already, perhaps under another name of its target: keys hold what is said."""
    return bool(stored(conn, feedback.c.idempotency_key, tenant, [ADMIN_KEYS + key]))


def _is_told(conn: sa.Connection, tenant: str, item: NewFeedback) -> bool:
    """Whether the same was said of the same target, by whatever name it was called."""
    f = feedback.c
    on_session = item.target_kind == TargetKind.SESSION
    same = (
        f.tenant == tenant,
        sa.and_(f.session_id == item.target_id, f.exchange_id.is_(None))
        if on_session
        else f.exchange_id == item.target_id,
        f.name == item.name,
        f.kind == item.kind.value,
        f.source == item.source,
    )
    query = sa.select(f.value, f.author, f.observed_at).where(*same)
    told = [(row.value, row.author, row.observed_at) for row in conn.execute(query)]
    return (item.value, item.author, item.observed_at) in told


def _by_external_key(conn: sa.Connection, tenant: str, keys: Sequence[str]) -> str | None:
    """The exchange known by the first of `keys` that is known at all."""
    e = exchanges.c
    query = sa.select(e.external_key, e.id).where(e.tenant == tenant, e.external_key.in_(keys))
    found = {row.external_key: row.id for row in conn.execute(query)}
    return next((found[key] for key in keys if key in found), None)


def _count_feedback(conn: sa.Connection, tenant: str, conversation: Conversation, told: Told) -> None:
    """By their keys alone: a judgement without one counts as new until it is compared with what is stored."""
    keys = [ADMIN_KEYS + judgement.item.key for judgement in conversation.judgements if judgement.item.key]
    there = stored(conn, feedback.c.idempotency_key, tenant, keys)
    told.merged["feedback"] += len(there)
    told.taken["feedback"] += len(conversation.judgements) - len(there)


def _all_new(taking: Taking, conversation: Conversation) -> Told:
    told = Told()
    counts = {"exchanges": len(conversation.turns), "feedback": len(conversation.judgements)}
    told.taken.update({name: count for name, count in counts.items() if count})
    _count_session(taking, conversation, told.taken)
    return told


def _session_name(conversation: Conversation) -> str:
    named = conversation.turns[0].record.caller.session if conversation.turns else None
    return named or conversation.key


def _count_session(taking: Taking, conversation: Conversation, counts: Counter[str]) -> None:
    """Each session once, however many of the file's conversations are in it."""
    name = _session_name(conversation)
    if conversation.turns and name not in taking.sessions:
        taking.sessions.add(name)
        counts["sessions"] += 1


def _id(conversation: Conversation, turn: Turn) -> str:
    """The id that the log gives, where it was written here; else one derived from what the call is."""
    return turn.record.id or exchange_id(f"{conversation.key}/{turn.key}")


def _tenant(taking: Taking) -> str:
    if taking.store is None:
        raise ValueError("nothing is written without a store")
    return taking.store.tenant


def again(conversation: Conversation, ordinal: int) -> Conversation:
    """The same conversation a second time in one file: another sample, with names of its own."""
    mark = f"#{ordinal}"

    def renamed(name: str | None) -> str | None:
        return None if name is None else f"{name}{mark}"

    def marked(turn: Turn) -> Turn:
        caller = turn.record.caller
        own = replace(caller, session=renamed(caller.session), external_key=renamed(caller.external_key))
        return replace(turn, record=replace(turn.record, caller=own))

    def judged(judgement: Judgement) -> Judgement:
        item = replace(judgement.item, target_id=f"{judgement.item.target_id}{mark}", key=renamed(judgement.item.key))
        return replace(judgement, item=item)

    return replace(
        conversation,
        key=conversation.key + mark,
        digest=f"{conversation.digest}{mark}",
        turns=tuple(map(marked, conversation.turns)),
        judgements=tuple(map(judged, conversation.judgements)),
    )


def iterate(found: Iterator[Conversation]) -> Iterator[Conversation]:
    """Every conversation once; a second one with the same name is that one, without a name another sample."""
    seen: Counter[str] = Counter()
    for conversation in found:
        mark = f"{conversation.key}\0{conversation.digest}"
        seen[mark] += 1
        yield conversation if conversation.named or seen[mark] == 1 else again(conversation, seen[mark])
