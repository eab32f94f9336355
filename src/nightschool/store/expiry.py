"""Taking exchanges out of the store, and then whatever nothing refers to any more.

Every transaction is small and leaves the store whole. `remove` takes out exchanges with what is theirs alone, and
writes down what they shared (`orphans`). `sweep` reads which of that is still referred to and deletes the rest; what a
new exchange refers to meanwhile, that exchange crosses out (`reclaim`). Stopped anywhere, the next sweep goes on. Of
several processes that delete at once, the last one to remove something sweeps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from nightschool.store.attachments import RUN, named_in
from nightschool.store.blobs import in_parts
from nightschool.store.bodies import body_references
from nightschool.store.database import Store
from nightschool.store.ids import new_id
from nightschool.store.prepared import Prepared
from nightschool.store.prompts import load_prompt
from nightschool.store.readings import readings
from nightschool.store.schema import (
    blobs,
    bodies,
    choices,
    exchanges,
    feedback,
    messages,
    meta,
    orphans,
    sessions,
    spellings,
)
from nightschool.store.tree import with_content
from nightschool.store.writer import Write

BODY, MESSAGE, BLOB = "body", "message", "blob"
TABLES = {BODY: bodies, MESSAGE: messages, BLOB: blobs}
SWEEPER = "sweeper"  # in `meta`, by tenant: whose sweep goes on; who removes exchanges meanwhile ends it
MAX_ORPHANS = 200_000  # looked at in one pass; each takes about 200 bytes of memory
DELETED_AT_ONCE = 200

Hashes = dict[str, set[str]]

_any_orphan = Prepared(sa.select(orphans.c.kind).where(orphans.c.tenant == sa.bindparam("tenant")).limit(1))


@dataclass(slots=True)
class Removed:
    """How many rows went."""

    exchanges: int = 0
    feedback: int = 0
    sessions: int = 0


def remove(conn: sa.Connection, tenant: str, ids: Sequence[str]) -> Removed:
    """Delete exchanges, the feedback on them, and sessions that are empty then. Call it inside a write of the store.

    An exchange that goes on from a removed one gets the whole list of its prompt ids.
    """
    _overwrite(conn)
    conn.execute(sa.delete(meta).where(meta.c.tenant == tenant, meta.c.key == SWEEPER))
    x, c, f = exchanges.c, choices.c, feedback.c
    mine = (x.tenant == tenant, x.id.in_(ids))
    of_choices = (c.tenant == tenant, c.exchange_id.in_(ids))
    _write_down(conn, tenant, _referred(conn, tenant, ids))
    session_ids = sorted(set(conn.scalars(sa.select(x.session_id).where(*mine))))
    _free_children(conn, tenant, session_ids, ids)
    removed = Removed(feedback=_unsay(conn, tenant, f.exchange_id.in_(ids)))
    conn.execute(sa.delete(choices).where(*of_choices))
    removed.exchanges = conn.execute(sa.delete(exchanges).where(*mine)).rowcount
    for session_id in session_ids:
        _recount(conn, tenant, session_id, removed)
    return removed


def reclaim(conn: sa.Connection, tenant: str, ids: Sequence[str]) -> None:
    """What these new exchanges refer to is nobody's orphan any more. Call it in the write that stored them.

    Edge: one query while there are no orphans, as there are none but between `remove` and the end of `sweep`.
    """
    if not _any_orphan.all(conn, tenant=tenant):
        return
    o = orphans.c
    for some_ids in in_parts(ids):
        for kind, hashes in _referred(conn, tenant, some_ids).items():
            for some in in_parts(sorted(hashes)):
                conn.execute(sa.delete(orphans).where(o.tenant == tenant, o.kind == kind, o.hash.in_(some)))


@dataclass(slots=True)
class Swept:
    """How many rows of each kind nothing referred to any more."""

    bodies: int = 0
    messages: int = 0
    blobs: int = 0


def sweep(store: Store, tell: Callable[[str], None] = lambda _line: None) -> Swept:
    """Delete what `remove` wrote down and nothing refers to. Reads the tenant's rows once for each pass."""
    swept, sweeper = Swept(), new_id()
    store.write(lambda conn: _begin_sweep(conn, store.tenant, sweeper))
    while True:
        with store.read() as conn:
            asked = _load_orphans(conn, store.tenant)
            if not any(asked.values()):
                break
            tell(f"Looking for what still refers to {sum(map(len, asked.values()))} bodies, messages and blobs")
            search = Search(store.tenant, sweeper, asked, _attachments(conn, store.tenant, asked[BLOB]))
            search.look(conn)
        for kind in TABLES:
            for some in _parts(sorted(asked[kind])):
                count = write_aside(store, lambda conn, k=kind, s=some, found=search: _delete(conn, found, k, s))
                if count is None:
                    return swept
                name = {BODY: "bodies", MESSAGE: "messages", BLOB: "blobs"}[kind]
                setattr(swept, name, getattr(swept, name) + count)
    if store.engine.dialect.name == "sqlite":
        raw = store.engine.raw_connection()  # outside any transaction: the log keeps copies of what was deleted
        try:
            raw.driver_connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # type: ignore[union-attr]
        finally:
            raw.close()
    return swept


def write_aside(store: Store, work: Write) -> Any:
    """Write, and then keep away for as long as that took: other processes wait for the lock in naps, not in a queue."""
    started = time.monotonic()
    result = store.write(work)
    time.sleep(time.monotonic() - started)
    return result


@dataclass(slots=True)
class Search:
    """Which of the hashes asked for something still refers to.

    `attachments` are those of the blobs asked for that messages may name in their content; only if there are any
    is content read. `inside` holds parent and blobs of the messages asked for: what a live one stands on is alive too.
    """

    tenant: str
    sweeper: str
    asked: Hashes
    attachments: set[str]
    live: Hashes = field(default_factory=lambda: {kind: set() for kind in TABLES})
    inside: dict[str, tuple[str | None, set[str | None]]] = field(default_factory=dict)

    def look(self, conn: sa.Connection) -> None:
        """Look at all rows of the tenant."""
        x, c, b = exchanges.c, choices.c, bodies.c
        for row in self._rows(conn, exchanges, (x.request_body, x.reply_body, x.tools_blob, x.prompt_message)):
            self._mark(BODY, (row.request_body, row.reply_body))
            self._mark(BLOB, (row.tools_blob,))
            self._mark(MESSAGE, (row.prompt_message,))
        for row in self._rows(conn, choices, (c.message_hash,)):
            self._mark(MESSAGE, (row.message_hash,))
        for node_hash, parent, named in self._messages(conn):
            if node_hash in self.asked[MESSAGE]:
                self.inside[node_hash] = (parent, named)
            else:
                self._mark(MESSAGE, (parent,))
                self._mark(BLOB, named)
        for row in self._rows(conn, bodies, (b.hash, b.segments)):
            if row.hash not in self.asked[BODY] or row.hash in self.live[BODY]:
                shared, leaves = body_references(conn, self.tenant, row.segments)
                self._mark(BLOB, shared)
                self._mark(MESSAGE, leaves)
        todo = list(self.live[MESSAGE])
        while todo:
            parent, named = self.inside.get(todo.pop(), (None, set()))
            self._mark(BLOB, named)
            if parent in self.asked[MESSAGE] and parent not in self.live[MESSAGE]:
                self.live[MESSAGE].add(parent)
                todo.append(parent)

    def _messages(self, conn: sa.Connection) -> Iterator[tuple[str, str | None, set[str | None]]]:
        """Each message with its parent and the blobs that it is, or names."""
        m = messages.c
        if not self.attachments:
            for row in self._rows(conn, messages, (m.hash, m.parent_hash, m.blob_hash)):
                yield row.hash, row.parent_hash, {row.blob_hash}
            return
        data, blob = with_content()
        joined = messages.outerjoin(blobs, blob)
        for row in self._rows(conn, messages, (m.hash, m.parent_hash, m.blob_hash, data), joined):
            yield row.hash, row.parent_hash, {row.blob_hash, *named_in(row.data or b"")}

    def _mark(self, kind: str, hashes: Iterable[str | None]) -> None:
        self.live[kind].update(h for h in hashes if h is not None and h in self.asked[kind])

    def _rows(
        self,
        conn: sa.Connection,
        table: sa.Table,
        columns: Sequence[sa.ColumnElement[Any]],
        source: sa.FromClause | None = None,
    ) -> sa.CursorResult[Any]:
        query = sa.select(*columns).where(table.c.tenant == self.tenant)
        query = query if source is None else query.select_from(source)
        return conn.execute(query, execution_options={"yield_per": 1000})


def _begin_sweep(conn: sa.Connection, tenant: str, sweeper: str) -> None:
    conn.execute(sa.delete(meta).where(meta.c.tenant == tenant, meta.c.key == SWEEPER))
    conn.execute(sa.insert(meta).values(tenant=tenant, key=SWEEPER, value=sweeper))


def _delete(conn: sa.Connection, search: Search, kind: str, some: Sequence[str]) -> int | None:
    """Delete those of `some` that nothing referred to, and nothing that came since reclaimed.

    `None` when the sweep has ended: what was removed meanwhile may be written down again, though something that came
    since refers to it.
    """
    o, tenant = orphans.c, search.tenant
    going_on = sa.select(meta.c.value).where(meta.c.tenant == tenant, meta.c.key == SWEEPER)
    if conn.scalar(going_on) != search.sweeper:
        return None
    _overwrite(conn)
    written_down = (o.tenant == tenant, o.kind == kind, o.hash.in_(some))
    dead = set(conn.scalars(sa.select(o.hash).where(*written_down))) - search.live[kind]
    table = TABLES[kind]
    count = conn.execute(sa.delete(table).where(table.c.tenant == tenant, table.c.hash.in_(dead))).rowcount
    if kind == MESSAGE:
        conn.execute(sa.delete(spellings).where(spellings.c.tenant == tenant, spellings.c.message_hash.in_(dead)))
    conn.execute(sa.delete(orphans).where(*written_down))
    return count


def _overwrite(conn: sa.Connection) -> None:
    """From here on the bytes of deleted rows go, not only the way to them."""
    if conn.dialect.name == "sqlite":
        conn.exec_driver_sql("PRAGMA secure_delete=ON")


def _referred(conn: sa.Connection, tenant: str, ids: Sequence[str]) -> Hashes:
    """The bodies, messages and blobs that these exchanges are restored from."""
    x, c, m = exchanges.c, choices.c, messages.c
    columns = (x.request_body, x.reply_body, x.tools_blob, x.prompt_message)
    rows = conn.execute(sa.select(*columns).where(x.tenant == tenant, x.id.in_(ids))).all()
    found: Hashes = {
        BODY: {key for row in rows for key in (row.request_body, row.reply_body) if key},
        BLOB: {row.tools_blob for row in rows if row.tools_blob},
        MESSAGE: set(),
    }
    leaves = {row.prompt_message for row in rows if row.prompt_message}
    leaves.update(conn.scalars(sa.select(c.message_hash).where(c.tenant == tenant, c.exchange_id.in_(ids))))
    for some in in_parts(sorted(found[BODY])):
        query = sa.select(bodies.c.segments).where(bodies.c.tenant == tenant, bodies.c.hash.in_(some))
        for segments in conn.scalars(query).all():
            shared, ends = body_references(conn, tenant, segments)
            found[BLOB] |= shared
            leaves |= ends
    data, blob = with_content()
    for some in in_parts(sorted(leaves)):
        link = sa.select(m.hash, m.parent_hash)
        branch = link.where(m.tenant == tenant, m.hash.in_(some)).cte("branch", recursive=True)
        branch = branch.union(link.where(m.tenant == tenant, m.hash == branch.c.parent_hash))
        here = sa.and_(m.tenant == tenant, m.hash == branch.c.hash)
        query = sa.select(m.hash, m.blob_hash, data).select_from(branch.join(messages, here).outerjoin(blobs, blob))
        for row in conn.execute(query):
            found[MESSAGE].add(row.hash)
            found[BLOB].update(named_in(row.data or b""), (row.blob_hash,) if row.blob_hash else ())
    return found


def _write_down(conn: sa.Connection, tenant: str, found: Hashes) -> None:
    """All of this becomes a candidate."""
    for kind, hashes in found.items():
        known: set[str] = set()
        for some in in_parts(sorted(hashes)):
            o = orphans.c
            known.update(conn.scalars(sa.select(o.hash).where(o.tenant == tenant, o.kind == kind, o.hash.in_(some))))
        new = [{"tenant": tenant, "kind": kind, "hash": h} for h in sorted(hashes - known)]
        if new:
            conn.execute(sa.insert(orphans), new)


def _free_children(conn: sa.Connection, tenant: str, session_ids: Sequence[str], ids: Sequence[str]) -> None:
    """What stays of a session no longer builds its prompts on what goes."""
    x = exchanges.c
    going = set(ids)
    for some in in_parts(session_ids):
        query = sa.select(x.id, x.parent_exchange_id, x.prompt_prefix_len).where(
            x.tenant == tenant, x.session_id.in_(some), x.parent_exchange_id.is_not(None)
        )
        for row in conn.execute(query).all():
            if row.id in going or row.parent_exchange_id not in going:
                continue
            values: dict[str, Any] = {"parent_exchange_id": None}
            if row.prompt_prefix_len:
                values |= {"prompt_ids": load_prompt(conn, tenant, row.id), "prompt_prefix_len": 0}
            conn.execute(sa.update(exchanges).where(x.tenant == tenant, x.id == row.id).values(values))


def _recount(conn: sa.Connection, tenant: str, session_id: str, removed: Removed) -> None:
    x, s, f = exchanges.c, sessions.c, feedback.c
    counted = sa.func.count(sa.case((x.retry_of.is_(None), 1)))
    query = sa.select(sa.func.count(), counted, sa.func.min(x.started_at), sa.func.max(x.started_at))
    total, number, first, last = conn.execute(query.where(x.tenant == tenant, x.session_id == session_id)).one()
    this = (s.tenant == tenant, s.id == session_id)
    if total:
        conn.execute(sa.update(sessions).where(*this).values(num_exchanges=number, first_at=first, last_at=last))
        return
    removed.feedback += _unsay(conn, tenant, f.session_id == session_id)
    removed.sessions += conn.execute(sa.delete(sessions).where(*this)).rowcount


def _unsay(conn: sa.Connection, tenant: str, about: sa.ColumnElement[bool]) -> int:
    """Delete feedback, and what readers made of it; how many judgements went."""
    f = feedback.c
    said = sa.select(f.id).where(f.tenant == tenant, about)
    conn.execute(sa.delete(readings).where(readings.c.tenant == tenant, readings.c.feedback_id.in_(said)))
    return conn.execute(sa.delete(feedback).where(f.tenant == tenant, about)).rowcount


def _load_orphans(conn: sa.Connection, tenant: str) -> Hashes:
    asked: Hashes = {kind: set() for kind in TABLES}
    query = sa.select(orphans.c.kind, orphans.c.hash).where(orphans.c.tenant == tenant).limit(MAX_ORPHANS)
    for row in conn.execute(query):
        asked[row.kind].add(row.hash)
    return asked


def _attachments(conn: sa.Connection, tenant: str, hashes: set[str]) -> set[str]:
    """Those of these blobs that are images or files out of messages."""
    found: set[str] = set()
    for some in _parts(sorted(hashes)):
        query = sa.select(blobs.c.hash, blobs.c.data).where(blobs.c.tenant == tenant, blobs.c.hash.in_(some))
        found.update(row.hash for row in conn.execute(query) if RUN.fullmatch(row.data))
    return found


def _parts(values: Sequence[str]) -> Iterable[Sequence[str]]:
    return (values[at : at + DELETED_AT_ONCE] for at in range(0, len(values), DELETED_AT_ONCE))
