"""Bytes stored once, under their SHA-256."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import sqlalchemy as sa

from nightschool.errors import StoreError
from nightschool.store.memo import MAX_ENTRIES
from nightschool.store.prepared import Lookup, insert_into
from nightschool.store.schema import blobs

IN_LIMIT = 500  # values in one IN (...): far below SQLite's limit, few distinct statements to compile

_known = Lookup(blobs.c.hash, (blobs.c.hash,))
_whole = Lookup(blobs.c.hash, (blobs.c.hash, blobs.c.data))
_insert = insert_into(blobs)


def put_blob(conn: sa.Connection, tenant: str, data: bytes) -> str:
    blob_hash = hashlib.sha256(data).hexdigest()
    put_hashed(conn, tenant, {blob_hash: data})
    return blob_hash


def put_hashed(conn: sa.Connection, tenant: str, datas: dict[str, bytes], known: set[str] | None = None) -> None:
    """Store what is not stored yet of blobs whose hashes are known. `known` is what is stored; it grows."""
    known = set() if known is None else known
    if len(known) > MAX_ENTRIES:
        known.clear()
    asked = [blob_hash for blob_hash in datas if blob_hash not in known]
    if not asked:
        return
    known.update(row.hash for row in _known.rows(conn, tenant, asked))
    _insert.many(conn, [{"tenant": tenant, "hash": h, "data": datas[h]} for h in asked if h not in known])
    known.update(asked)


def get_blob(conn: sa.Connection, tenant: str, blob_hash: str) -> bytes:
    """Raises StoreError when the blob is not there."""
    return get_blobs(conn, tenant, [blob_hash])[blob_hash]


def get_blobs(conn: sa.Connection, tenant: str, hashes: Iterable[str]) -> dict[str, bytes]:
    """Raises StoreError when one of them is not there."""
    wanted = list(dict.fromkeys(hashes))
    found = {row.hash: row.data for row in _whole.rows(conn, tenant, wanted)}
    if len(found) < len(wanted):
        lost = next(h for h in wanted if h not in found)
        raise StoreError(f"Blob {lost[:12]} is not in the store.", "The store is damaged.", "nightschool doctor")
    return found


def stored(conn: sa.Connection, column: sa.Column, tenant: str, values: Sequence[str]) -> set[str]:
    """Which of `values` occur in a column of a table."""
    found: set[str] = set()
    for some in in_parts(values):
        found.update(conn.scalars(sa.select(column).where(column.table.c.tenant == tenant, column.in_(some))))
    return found


def in_parts(values: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(values), IN_LIMIT):
        yield values[start : start + IN_LIMIT]
