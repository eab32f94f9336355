"""The one thread that writes: what is queued meanwhile shares a commit."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from nightschool.errors import StoreError
from nightschool.store.failpoints import fail_point
from nightschool.store.memo import forget

# Pages that the writer keeps, and how many it writes to the log before they go to their places: what is hot in
# the indexes is neither read again nor put in its place with every few commits.
CACHE_KIB = 32 * 1024
WAL_PAGES = 8192

Write = Callable[[sa.Connection], Any]
Item = tuple[Write, Future[Any]]
Outcome = tuple[Any, Exception | None]


class Writer:
    """Writes are functions of a connection that run one after another on one thread.

    What is queued when a write has run joins its commit, until the transaction is `COMMIT_WINDOW_S` old;
    nothing waits for company that has not come. A write that raises is rolled back alone, by savepoint, and
    its future carries the error. All writes use one connection, which knows what they have stored (`memo.py`).
    """

    COMMIT_WINDOW_S = 0.005

    def __init__(self, engine: sa.Engine) -> None:
        self._writing = engine.execution_options(writing=True)
        self._connection: sa.Connection | None = None  # of the thread below
        self._queue: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._write_loop, name="store-writer", daemon=True)
        self._thread.start()

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

    def close(self) -> None:
        """Drain the queue and stop. May be called again."""
        with self._closing:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    def _write_loop(self) -> None:
        while (item := self._queue.get()) is not None:
            batch = [item]
            try:
                outcomes = self._transact(batch)
            except BaseException as error:  # boundary: nothing of the batch is durable; the thread writes what follows
                outcomes = [(None, _refused(error))] * len(batch)
            for (_, future), (result, error) in zip(batch, outcomes, strict=True):
                if error is None:
                    future.set_result(result)
                else:
                    future.set_exception(error)
        self._disconnect()

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        """The writer's connection, in a transaction. After an error it is given back, and the next one is fresh."""
        try:
            connection = self._connect()
            try:
                begun = connection.begin()
            except Exception:
                if not _is_lost(connection):
                    raise
                self._disconnect()  # the server was restarted since the last transaction: nothing of this one is gone
                connection = self._connect()
                begun = connection.begin()
            with begun:
                yield connection
        except BaseException:
            self._disconnect()
            raise

    def _connect(self) -> sa.Connection:
        if self._connection is None:
            self._connection = self._writing.connect()
            if self._connection.dialect.name == "sqlite":
                raw: Any = self._connection.connection.dbapi_connection
                raw.execute(f"PRAGMA cache_size={-CACHE_KIB}")
                raw.execute(f"PRAGMA wal_autocheckpoint={WAL_PAGES}")
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            forget(self._connection)
            if _is_lost(self._connection):
                self._connection.invalidate()
            self._connection.close()
            self._connection = None

    def _transact(self, batch: list[Item]) -> list[Outcome]:
        """Run `batch`, and what joins it, in one transaction; the outcomes in order."""
        outcomes: list[Outcome] = []
        until = time.monotonic() + self.COMMIT_WINDOW_S
        with self._transaction() as connection:
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


def _run(connection: sa.Connection, write: Write) -> Outcome:
    try:
        with connection.begin_nested():
            return write(connection), None
    except Exception as error:  # boundary: one caller's failure is its own
        forget(connection)
        if connection.invalidated or (connection.dialect.name == "sqlite" and not _in_transaction(connection)):
            raise  # a full disk or a lost server ends the whole transaction: what ran before is gone too
        return None, error


def _is_lost(connection: sa.Connection) -> bool:
    """Whether the server has ended the connection, as far as the driver has noticed."""
    raw: Any = None if connection.invalidated else connection.connection.dbapi_connection
    return raw is None or getattr(raw, "closed", False)


def _in_transaction(connection: sa.Connection) -> bool:
    raw: Any = connection.connection.dbapi_connection
    return raw.in_transaction


def _refused(error: BaseException) -> StoreError:
    """What the callers of a failed transaction get. The first error of the chain is the one that tells."""
    first: BaseException = error
    while first.__context__ is not None:
        first = first.__context__
    why = f"The database refused: {first}." if isinstance(error, Exception) else f"{type(error).__name__} ended it."
    failure = StoreError("Nothing was written.", why, "nightschool doctor")
    failure.__cause__ = error
    return failure
