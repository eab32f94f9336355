"""What administrators did, append-only: each entry's hash covers the one before it.

Changing, removing or reordering an entry breaks the chain at that place; triggers of the database refuse it in
the first place. Cutting off the newest entries leaves a chain that is whole, so `nightschool doctor
--security` prints its length and last hash, to be noted elsewhere.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from nightschool.store.ids import new_id
from nightschool.store.schema import audit as table
from nightschool.store.tree import canonical
from nightschool.types import Json

FIRST = ""  # what the first entry of a tenant follows


@dataclass(frozen=True, slots=True)
class Entry:
    """One act: who, what (`key.made`, `key.revoked`, `retention`, `promote.override`), and its facts."""

    by: str
    action: str
    detail: Json


@dataclass(frozen=True, slots=True)
class Chain:
    """What checking found: the number of whole entries, the last hash, and the id at which the chain breaks."""

    length: int
    head: str | None
    broken_at: str | None = None


def append(conn: sa.Connection, tenant: str, entry: Entry) -> None:
    """Add an entry, in the transaction of the act it tells of. Call it inside a write of the store."""
    newer = table.alias()
    followed = sa.exists().where(newer.c.tenant == tenant, newer.c.previous_hash == table.c.hash)
    last = sa.select(table.c.hash).where(table.c.tenant == tenant, ~followed).order_by(table.c.id.desc())
    row = {
        "tenant": tenant,
        "id": new_id(),
        "at": time.time(),
        "by": entry.by,
        "action": entry.action,
        "detail": entry.detail,
        "previous_hash": conn.scalar(last.limit(1)) or FIRST,
    }
    conn.execute(sa.insert(table), {**row, "hash": _hash(row)})


def read_chain(conn: sa.Connection, tenant: str) -> list[Any]:
    """The entries as rows, oldest first, as far as each follows from the one before."""
    rows = conn.execute(sa.select(table).where(table.c.tenant == tenant)).all()
    after = {row.previous_hash: row for row in rows}
    chain: list[Any] = []
    at = FIRST
    while len(chain) < len(rows) and at in after:
        chain.append(after[at])
        at = chain[-1].hash
    return chain


def check_chain(conn: sa.Connection, tenant: str) -> Chain:
    """Whether every entry is as it was written, and in its place."""
    chain = read_chain(conn, tenant)
    head = None
    for place, row in enumerate(chain):
        if _hash(dict(row._mapping)) != row.hash:
            return Chain(place, head, row.id)
        head = row.hash
    known = {row.id for row in chain}
    strays = [row for row in conn.scalars(sa.select(table.c.id).where(table.c.tenant == tenant)) if row not in known]
    return Chain(len(chain), head, min(strays, default=None))


def _hash(row: Json) -> str:
    names = ("tenant", "id", "at", "by", "action", "detail", "previous_hash")
    return hashlib.sha256(canonical([row[name] for name in names])).hexdigest()
