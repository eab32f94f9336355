"""The store's connections: many readers, one writer thread with group commit."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from nightschool.errors import StoreError
from nightschool.store import schema
from nightschool.store.splits import make_split_key

Write = Callable[[sa.Connection], Any]


class Store:
    """One database, one tenant. Open it with `Store.open`; close it with `close` or `with`.

    Reads take a connection from a pool (`read`). Writes are functions of a connection that run one
    after another on the writer thread; those that wait together are committed together (group commit,
    at most `COMMIT_WINDOW_S` of waiting). A write that raises is rolled back alone, by savepoint, and its
    future carries the error.
    """

    COMMIT_WINDOW_S = 0.005
    COMMIT_BATCH = 256

    def __init__(self, engine: sa.Engine, tenant: str) -> None:
        self.engine = engine
        self.tenant = tenant
        self._queue: queue.Queue[tuple[Write, Future[Any]] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._write_loop, name="store-writer", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, path: Path | str, tenant: str = "default") -> Store:
        """Open or create the SQLite file at `path`, bring its schema up to date, start the writer."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        engine = sa.create_engine(f"sqlite:///{path}", connect_args={"timeout": 5.0})

        @event.listens_for(engine, "connect")
        def pragmas(connection: Any, _record: object) -> None:
            connection.isolation_level = None  # SQLAlchemy's BEGIN below, not sqlite3's own
            cursor = connection.cursor()
            cursor.execute("PRAGMA journal_mode=WAL")
            cursor.execute("PRAGMA synchronous=FULL")
            cursor.execute("PRAGMA busy_timeout=5000")
            cursor.close()

        @event.listens_for(engine, "begin")
        def begin(connection: sa.Connection) -> None:
            connection.exec_driver_sql("BEGIN")

        schema.metadata.create_all(engine)
        store = cls(engine, tenant)
        store.write(lambda connection: make_split_key(connection, tenant))
        return store

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A connection for queries; one snapshot for as long as it is held."""
        with self.engine.connect() as connection:
            yield connection

    def submit(self, write: Write) -> Future[Any]:
        """Queue `write`; the future resolves after its commit, with its result or its error."""
        future: Future[Any] = Future()
        self._queue.put((write, future))
        return future

    def write(self, write: Write) -> Any:
        """Run `write` on the writer thread and wait until it is durable."""
        return self.submit(write).result()

    def close(self) -> None:
        """Drain the queue, stop the writer, release the file."""
        self._queue.put(None)
        self._thread.join()
        self.engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _write_loop(self) -> None:
        stop = False
        while not stop:
            item = self._queue.get()
            if item is None:
                return
            batch = [item]
            while len(batch) < self.COMMIT_BATCH:
                try:
                    following = self._queue.get(timeout=self.COMMIT_WINDOW_S)
                except queue.Empty:
                    break
                if following is None:
                    stop = True
                    break
                batch.append(following)
            self._commit(batch)

    def _commit(self, batch: list[tuple[Write, Future[Any]]]) -> None:
        results: list[tuple[Future[Any], Any, Exception | None]] = []
        try:
            with self.engine.connect() as connection, connection.begin():
                for write, future in batch:
                    try:
                        with connection.begin_nested():
                            results.append((future, write(connection), None))
                    except Exception as error:  # boundary: one caller's failure is its own
                        results.append((future, None, error))
        except Exception as error:  # boundary: the commit itself failed, nothing of the batch is durable
            failure = StoreError(
                "Nothing was written.", f"The database refused the commit: {error}", "nightschool doctor"
            )
            for _, future in batch:
                future.set_exception(failure)
            return
        for future, result, error in results:
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
