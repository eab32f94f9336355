"""The store's connections: many readers, one writer thread with group commit."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from nightschool.errors import StoreError
from nightschool.store.failpoints import fail_point
from nightschool.store.migrate import upgrade
from nightschool.store.splits import make_split_key

Write = Callable[[sa.Connection], Any]
Item = tuple[Write, Future[Any]]
Outcome = tuple[Any, Exception | None]

BUSY_TIMEOUT_S = 5.0


class Store:
    """One database, one tenant. Open it with `Store.open`; close it with `close` or `with`.

    Reads take a connection from a pool (`read`). Writes are functions of a connection that run one
    after another on the writer thread. What is queued when a write has run joins its commit, until the
    transaction is `COMMIT_WINDOW_S` old; nothing waits for company that has not come. A write that raises
    is rolled back alone, by savepoint, and its future carries the error.
    """

    COMMIT_WINDOW_S = 0.005

    def __init__(self, engine: sa.Engine, tenant: str) -> None:
        self.engine = engine
        self.tenant = tenant
        self._writing = engine.execution_options(writing=True)
        self._queue: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._write_loop, name="store-writer", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, path: Path | str, tenant: str = "default") -> Store:
        """Open or create the SQLite file at `path`, bring its schema up to date, start the writer.

        Raises:
            StoreError: the file is no store, cannot be opened, or was written by a newer Nightschool.
        """
        path = Path(path)
        engine = connect(path)
        try:
            upgrade(engine, path)
        except BaseException:
            engine.dispose()
            raise
        store = cls(engine, tenant)
        store.write(lambda connection: make_split_key(connection, tenant))
        return store

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
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # a queued write cannot be cancelled
        with self._closing:
            if self._closed:
                raise StoreError("Nothing was written.", "The store is closed.", "Open it again.")
            self._queue.put((write, future))
        return future

    def write(self, write: Write) -> Any:
        """Run `write` on the writer thread and wait until it is durable."""
        return self.submit(write).result()

    def close(self) -> None:
        """Drain the queue, stop the writer, release the file. May be called again."""
        with self._closing:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()
        self.engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _write_loop(self) -> None:
        while (item := self._queue.get()) is not None:
            batch = [item]
            try:
                outcomes = self._transact(batch)
            except Exception as error:  # boundary: the commit failed, nothing of the batch is durable
                outcomes = [(None, _refused(error))] * len(batch)
            for (_, future), (result, error) in zip(batch, outcomes, strict=True):
                if error is None:
                    future.set_result(result)
                else:
                    future.set_exception(error)

    def _transact(self, batch: list[Item]) -> list[Outcome]:
        """Run `batch`, and what joins it, in one transaction; the outcomes in order."""
        outcomes: list[Outcome] = []
        until = time.monotonic() + self.COMMIT_WINDOW_S
        with self._writing.begin() as connection:
            for write, _ in batch:  # grows below
                outcomes.append(_run(connection, write))
                if self._queue.empty() or time.monotonic() > until:
                    continue
                following = self._queue.get()
                if following is None:
                    self._queue.put(None)  # closing: for the loop above, after this commit
                else:
                    batch.append(following)
            fail_point("store.before_commit")
        fail_point("store.after_commit")
        return outcomes


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


def _run(connection: sa.Connection, write: Write) -> Outcome:
    try:
        with connection.begin_nested():
            return write(connection), None
    except Exception as error:  # boundary: one caller's failure is its own
        raw: Any = connection.connection.dbapi_connection
        if not raw.in_transaction:
            raise  # a full disk ends the whole transaction: what ran before is gone too
        return None, error


def _refused(error: Exception) -> StoreError:
    """What the callers of a failed transaction get. The first error of the chain is the one that tells."""
    first: BaseException = error
    while first.__context__ is not None:
        first = first.__context__
    failure = StoreError("Nothing was written.", f"The database refused: {first}.", "nightschool doctor")
    failure.__cause__ = error
    return failure
