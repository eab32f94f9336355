"""Keys of agents and people: made once, shown once, kept as keyed hashes.

A key is 256 random bits, so nobody guesses it and a fast hash is enough. The hash is HMAC-SHA256 under a
secret that lies beside the store, not in it: whoever can read the table learns no key, and whoever can write
it cannot make one up.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from nightschool.access.audit import Entry, append
from nightschool.access.tokens import own_secret
from nightschool.errors import ConfigError, InputError, MissingError
from nightschool.store.database import Store
from nightschool.store.ids import new_id
from nightschool.store.schema import keys as table

SECRET_FILE = "keys.secret"
SECRET_VARIABLE = "NIGHTSCHOOL_KEY_SECRET"
REFRESH_S = 1.0
MAX_NAME_CHARS = 200

log = logging.getLogger(__name__)


class Role(StrEnum):
    """What a key allows: `data` sends traffic and feedback, `feedback` judges alone, `admin` everything."""

    DATA = "data"
    FEEDBACK = "feedback"
    ADMIN = "admin"


class Training(StrEnum):
    """A key's consent. `default`: allowed while the installation has one tenant, denied when it has several."""

    DEFAULT = "default"
    ALLOW = "allow"
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class Key:
    """One row of the table. Times in seconds since the epoch; `rate_per_minute` is `None` for no limit."""

    id: str
    tenant: str
    name: str
    role: Role
    training: Training
    rate_per_minute: int | None
    created_at: float
    revoked_at: float | None


@dataclass(frozen=True, slots=True)
class NewKey:
    """What a key is made from."""

    name: str
    role: Role = Role.DATA
    training: Training = Training.DEFAULT
    rate_per_minute: int | None = None


def key_secret(state: Path) -> bytes:
    """The secret under which keys are hashed: NIGHTSCHOOL_KEY_SECRET, else `state/keys.secret`, made at first use.

    Raises: ConfigError when others may read the file, or the variable is too short to be a secret.
    """
    given = os.environ.get(SECRET_VARIABLE)
    if given is not None and len(given) < 32:
        raise ConfigError(f"{SECRET_VARIABLE} is not used.", "It is shorter than 32 characters.", "Set a longer one.")
    return (given or own_secret(state / SECRET_FILE, "ns-secret-")).encode()


def key_hash(secret: bytes, key: bytes) -> str:
    return hmac.digest(secret, key, hashlib.sha256).hex()


def add_key(store: Store, secret: bytes, new: NewKey, by: str) -> tuple[Key, str]:
    """Make a key of `store`'s tenant; the row, and the key itself, which nobody can show again.

    Raises: InputError for a name or a rate that cannot be.
    """
    if not new.name.strip() or len(new.name) > MAX_NAME_CHARS:
        raise InputError("No key was made.", f"A name has 1 to {MAX_NAME_CHARS} characters.", "Name who uses it.")
    if new.rate_per_minute is not None and new.rate_per_minute < 1:
        raise InputError("No key was made.", "A rate is at least 1 request per minute.", "Leave --rate out for none.")
    text = f"ns-{new.role}-{secrets.token_urlsafe(32)}"
    key = Key(new_id(), store.tenant, new.name, new.role, new.training, new.rate_per_minute, time.time(), None)
    row = {**asdict(key), "role": key.role.value, "training": key.training.value}
    detail = {"key": key.id, **{name: row[name] for name in ("name", "role", "training", "rate_per_minute")}}

    def write(conn: sa.Connection) -> None:
        conn.execute(sa.insert(table), {**row, "hash": key_hash(secret, text.encode())})
        append(conn, store.tenant, Entry(by, "key.made", detail))

    store.write(write)
    return key, text


def list_keys(conn: sa.Connection, tenant: str) -> list[Key]:
    """The keys of a tenant, oldest first, revoked ones too."""
    rows = conn.execute(sa.select(table).where(table.c.tenant == tenant).order_by(table.c.created_at, table.c.id))
    return [_key(row) for row in rows]


def revoke_key(store: Store, named: str, by: str) -> Key:
    """Revoke the key with this id, or this name where one active key has it. Repeating it changes nothing.

    Raises: MissingError for an unknown key, InputError where several keys have the name.
    """

    def write(conn: sa.Connection) -> Key:
        known = list_keys(conn, store.tenant)
        found = [key for key in known if key.id == named]
        found = found or [key for key in known if key.name == named and key.revoked_at is None]
        if not found:
            raise MissingError(f"No key is called {named}.", "No active one has this id or name.", "nightschool keys")
        if len(found) > 1:
            raise InputError(f"{len(found)} keys are called {named}.", "It is not clear which.", "Give the key's id.")
        key = found[0]
        if key.revoked_at is not None:
            return key
        key = replace(key, revoked_at=time.time())
        mine = (table.c.tenant == store.tenant, table.c.id == key.id)
        conn.execute(sa.update(table).where(*mine).values(revoked_at=key.revoked_at))
        append(conn, store.tenant, Entry(by, "key.revoked", {"key": key.id, "name": key.name}))
        return key

    return store.write(write)


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The table as it was read; `stamp` changes when the table does."""

    stamp: tuple[object, ...]
    by_hash: dict[str, Key]
    by_id: dict[str, Key]
    data_tenants: frozenset[str]
    had_data_key: bool


class KeyRing:
    """The keys of all tenants in memory, so that a request costs no query.

    While `watch` runs, a new key works and a revoked one is refused within `REFRESH_S` seconds. When the store
    cannot be read, the keys last read go on (law 14).
    """

    def __init__(self, store: Store, secret: bytes) -> None:
        self._store = store
        self._secret = secret
        self._snapshot = self._read(None)

    def find(self, given: bytes) -> Key | None:
        """The key, perhaps a revoked one. Its hash is looked up: time tells nothing about other keys."""
        return self._snapshot.by_hash.get(key_hash(self._secret, given))

    def by_id(self, key_id: str) -> Key | None:
        return self._snapshot.by_id.get(key_id)

    @property
    def data_tenants(self) -> frozenset[str]:
        """The tenants whose agents have a key that works."""
        return self._snapshot.data_tenants

    @property
    def had_data_key(self) -> bool:
        """Whether an agent ever had a key, also one that is revoked by now."""
        return self._snapshot.had_data_key

    def refresh(self) -> None:
        """Read the table again if it changed. Raises: SQLAlchemyError."""
        self._snapshot = self._read(self._snapshot)

    @contextlib.asynccontextmanager
    async def watch(self) -> AsyncIterator[None]:
        """Refresh every `REFRESH_S` seconds for the length of the block."""
        stop = asyncio.Event()
        task = asyncio.create_task(self._refresh_until(stop))
        try:
            yield
        finally:
            stop.set()
            await task

    async def _refresh_until(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                await asyncio.to_thread(self.refresh)
            except SQLAlchemyError as error:
                log.warning("The keys could not be read (%s); the last ones go on.", type(error).__name__)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), REFRESH_S)

    def _read(self, known: _Snapshot | None) -> _Snapshot:
        """The one query over all tenants: the key says which tenant a caller is."""
        c, func = table.c, sa.func
        changed = sa.select(func.count(), func.max(c.created_at), func.count(c.revoked_at), func.max(c.revoked_at))
        with self._store.read() as conn:
            stamp = tuple(conn.execute(changed.select_from(table)).one())
            if known is not None and known.stamp == stamp:
                return known
            found = {row.hash: _key(row) for row in conn.execute(sa.select(table))}
        data = [key for key in found.values() if key.role == Role.DATA]
        return _Snapshot(
            stamp,
            found,
            {key.id: key for key in found.values()},
            frozenset(key.tenant for key in data if key.revoked_at is None),
            bool(data),
        )


def _key(row: Any) -> Key:
    role, training = Role(row.role), Training(row.training)
    return Key(row.id, row.tenant, row.name, role, training, row.rate_per_minute, row.created_at, row.revoked_at)
