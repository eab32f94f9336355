"""The store's connections: many readers, one writer thread."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from nightschool.errors import StoreError
from nightschool.store.migrate import WRITER_LOCK, upgrade, upgrade_server
from nightschool.store.splits import make_split_key
from nightschool.store.writer import Write, Writer

BUSY_TIMEOUT_S = 5.0

# The driver asks bytes and nulls how they want to be stored, each time, and then stores them as they are. Here they say
# so at once: an exchange has forty of them.
sqlite3.register_adapter(bytes, bytes.__bytes__)
sqlite3.register_adapter(type(None), {}.get)


class Store:
    """One database as one tenant sees it. Open it with `Store.open`; close it with `close` or `with`.

    Reads take a connection from a pool (`read`); writes go to the writer thread (`writer.py`). `scoped` gives
    the view of another tenant.
    """

    def __init__(self, engine: sa.Engine, tenant: str, writer: Writer, views: dict[str, Store] | None = None) -> None:
        self.engine = engine
        self.tenant = tenant
        self.writer = writer
        self._views = {} if views is None else views
        self._is_view = views is not None

    @classmethod
    def open(cls, place: Path | str, tenant: str = "default") -> Store:
        """Open or create the store at `place`, bring its schema up to date, start the writer.

        A place is the path of an SQLite file, or the URL of a Postgres database (`postgresql://...`), which has
        to exist.

        Raises:
            StoreError: there is no store, it cannot be opened, or was written by a newer Nightschool.
        """
        url = place if isinstance(place, str) and is_url(place) else None
        engine = connect_server(url) if url else connect(Path(place))
        try:
            if url:
                upgrade_server(engine)
            else:
                upgrade(engine, Path(place))
        except BaseException:
            engine.dispose()
            raise
        store = cls(engine, tenant, Writer(engine))
        store._views[tenant] = store
        store.write(lambda connection: make_split_key(connection, tenant))
        return store

    def scoped(self, tenant: str) -> Store:
        """This store for another tenant: the same connections, the same writer. Closing it closes nothing.

        Returns at once. A tenant that is new gets its split key in a write that goes before all of its others.

        Raises:
            StoreError: the store is closed.
        """
        known = self._views.get(tenant)
        if known is None:
            view = Store(self.engine, tenant, self.writer, self._views)
            made = view.submit(lambda connection: make_split_key(connection, tenant))
            known = self._views.setdefault(tenant, view)
            made.add_done_callback(lambda future: self._views.pop(tenant, None) if future.exception() else None)
        return known

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A connection for queries; one snapshot for as long as it is held. It cannot write."""
        with self.engine.connect() as connection:
            yield connection

    def submit(self, write: Write) -> Future[Any]:
        """Queue `write`; the future resolves after its commit, with its result or its error.

        Raises:
            StoreError: the store is closed.
        """
        return self.writer.submit(write)

    def write(self, write: Write) -> Any:
        """Run `write` on the writer thread and wait until it is durable."""
        return self.submit(write).result()

    def close(self) -> None:
        """Drain the queue, stop the writer, release the file. May be called again."""
        if not self._is_view:
            self.writer.close()
            self.engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def is_url(place: str) -> bool:
    return place.startswith(("postgresql://", "postgres://"))


def connect(path: Path) -> sa.Engine:
    """The engine of an SQLite file: WAL, durable commits, and readers that cannot write.

    Transactions of `engine.execution_options(writing=True)` take the write lock when they begin, so that
    none fails half-way because another process wrote meanwhile.
    """
    engine = sa.create_engine(f"sqlite:///{path}", connect_args={"timeout": BUSY_TIMEOUT_S}, max_overflow=-1)

    @event.listens_for(engine, "connect")
    def pragmas(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # the BEGIN below, not sqlite3's own
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")

    @event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        writing = connection.get_execution_options().get("writing", False)
        raw: Any = connection.connection.dbapi_connection
        raw.execute(f"PRAGMA query_only={int(not writing)}")
        raw.execute("BEGIN IMMEDIATE" if writing else "BEGIN")

    return engine


def connect_server(url: str) -> sa.Engine:
    """The engine of a Postgres database, with the same two kinds of transaction.

    A reading one is a snapshot and cannot write. Writing ones, of all processes, take turns by a lock of the
    database, as those of an SQLite file do.

    Raises:
        StoreError: the driver is not installed.
    """
    try:
        address = sa.make_url(url).set(drivername="postgresql+psycopg")
        engine = sa.create_engine(address, pool_pre_ping=True, max_overflow=-1)
        from psycopg.types.string import StrDumperUnknown
    except ImportError as error:
        raise StoreError(
            "The store cannot be opened.", "It is a Postgres database.", "pip install 'nightschool[postgres]'"
        ) from error

    class WithoutNul(StrDumperUnknown):
        """No text of Postgres holds a NUL: a question mark takes its place, in what is stored and in what is asked."""

        def dump(self, obj: str) -> Any:
            return super().dump(obj.replace("\0", "?"))

    @event.listens_for(engine, "connect")
    def adapt(connection: Any, _record: object) -> None:
        connection.adapters.register_dumper(str, WithoutNul)

    @event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        options = connection.get_execution_options()
        if options.get("writing", False):
            wait_ms = 0 if options.get("patient", False) else int(BUSY_TIMEOUT_S * 1000)  # 0: however long it takes
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {wait_ms}")
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({WRITER_LOCK})")
        else:
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")

    return engine
