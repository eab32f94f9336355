"""Which rows may teach and which may only examine: decided once, by a keyed hash (design section 5.3)."""

from __future__ import annotations

import hashlib
import hmac
import secrets

import sqlalchemy as sa

from nightschool.errors import StoreError
from nightschool.store.prepared import Prepared
from nightschool.store.schema import meta
from nightschool.types import Split

META_KEY = "split_key"
_key = Prepared(
    sa.select(meta.c.value).where(
        meta.c.tenant == sa.bindparam("tenant"), meta.c.key == sa.literal_column(f"'{META_KEY}'")
    )
)


def split_of(key: bytes, principal: str) -> Split:
    """80 % train, 10 % select, 10 % gate, by HMAC-SHA256 of the principal."""
    digest = hmac.new(key, principal.encode(), hashlib.sha256).digest()
    share = int.from_bytes(digest[:8], "big") / 2**64
    if share < 0.8:
        return Split.TRAIN
    return Split.SELECT if share < 0.9 else Split.GATE


def split_key(conn: sa.Connection, tenant: str) -> bytes:
    """The installation's secret key. Raises StoreError when the store was never opened for this tenant."""
    row = _key.first(conn, tenant=tenant)
    if row is None:
        raise StoreError(f"The store knows no tenant {tenant}.", "It has no split key.", "nightschool doctor")
    return bytes.fromhex(row.value)


def make_split_key(conn: sa.Connection, tenant: str) -> None:
    """Give the tenant its key, once: another key would move rows between training and examination."""
    query = sa.select(meta.c.value).where(meta.c.tenant == tenant, meta.c.key == META_KEY)
    if conn.scalar(query) is None:
        conn.execute(sa.insert(meta), {"tenant": tenant, "key": META_KEY, "value": secrets.token_hex(32)})
