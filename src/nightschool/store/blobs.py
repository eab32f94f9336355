"""Bytes stored once, under their SHA-256."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import sqlalchemy as sa

from nightschool.errors import StoreError
from nightschool.store.schema import blobs

IN_LIMIT = 500  # values in one IN (...): far below SQLite's limit, few distinct statements to compile


def put_blob(conn: sa.Connection, tenant: str, data: bytes) -> str:
    return put_blobs(conn, tenant, [data])[0]


def put_blobs(conn: sa.Connection, tenant: str, datas: Iterable[bytes]) -> list[str]:
    """The hashes, in order."""
    datas = list(datas)
    hashes = [hashlib.sha256(data).hexdigest() for data in datas]
    put_hashed(conn, tenant, dict(zip(hashes, datas, strict=True)))
    return hashes


def put_hashed(conn: sa.Connection, tenant: str, datas: dict[str, bytes]) -> set[str]:
    """Store what is not stored yet of blobs whose hashes are known; the hashes of those that were."""
    known = stored(conn, blobs.c.hash, tenant, list(datas))
    rows = [{"tenant": tenant, "hash": h, "data": data} for h, data in datas.items() if h not in known]
    if rows:
        conn.execute(sa.insert(blobs), rows)
    return known


def get_blob(conn: sa.Connection, tenant: str, blob_hash: str) -> bytes:
    """Raises StoreError when the blob is not there."""
    return get_blobs(conn, tenant, [blob_hash])[blob_hash]


def get_blobs(conn: sa.Connection, tenant: str, hashes: Iterable[str]) -> dict[str, bytes]:
    """Raises StoreError when one of them is not there."""
    wanted = list(dict.fromkeys(hashes))
    found: dict[str, bytes] = {}
    for some in in_parts(wanted):
        query = sa.select(blobs.c.hash, blobs.c.data).where(blobs.c.tenant == tenant, blobs.c.hash.in_(some))
        found.update(tuple(row) for row in conn.execute(query))
    if len(found) < len(wanted):
        lost = next(h for h in wanted if h not in found)
        raise StoreError(f"Blob {lost[:12]} is not in the store.", "The store is damaged.", "nightschool doctor")
    return found


def stored(conn: sa.Connection, column: sa.Column, tenant: str, values: Sequence[str]) -> set[str]:
    """Which of `values` occur in a hash column of a table."""
    found: set[str] = set()
    for some in in_parts(values):
        found.update(conn.scalars(sa.select(column).where(column.table.c.tenant == tenant, column.in_(some))))
    return found


def in_parts(values: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(values), IN_LIMIT):
        yield values[start : start + IN_LIMIT]
