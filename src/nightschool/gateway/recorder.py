"""Puts captures into the store after their reply has gone out; its failures never reach a reply (law 14)."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import sqlalchemy as sa

from nightschool.errors import StoreError
from nightschool.feedback.record import withhold_early
from nightschool.gateway.capture import Capture, bare_record, derive_record
from nightschool.store.database import Store
from nightschool.store.exchanges import insert_exchange
from nightschool.store.records import Record
from nightschool.types import Json, Purpose

CLOSE_S = 60.0

log = logging.getLogger(__name__)


class Recorder:
    """One thread derives records, the store's writer commits them.

    `max_queue_bytes` bounds what waits: beyond it captures are lost and counted rather than memory filled.
    """

    def __init__(self, store: Store, max_queue_bytes: int) -> None:
        self.store = store
        self._max_queue_bytes = max_queue_bytes
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="recorder")
        self._changed = threading.Condition()
        self._waiting: dict[str, int] = {}  # bytes by exchange id
        self._queue_bytes = 0
        self._num_stored = 0
        self._num_lost = 0

    def submit(self, capture: Capture) -> None:
        """Take a finished capture; returns at once and never raises."""
        capture.watch.stop()
        size = capture.size_bytes
        with self._changed:
            if self._queue_bytes + size > self._max_queue_bytes:
                self._num_lost += 1
                log.error("Exchange %s is not recorded: %d bytes are waiting already.", capture.id, self._queue_bytes)
                return
            self._waiting[capture.id] = size
            self._queue_bytes += size
        try:
            self._thread.submit(self._derive, capture)
        except RuntimeError as error:  # shutting down
            self._settle(capture.id, error)

    def counts(self) -> Json:
        """What /health shows: `stored` and `lost` since the start, and how many wait in `queue`."""
        with self._changed:
            return {"stored": self._num_stored, "lost": self._num_lost, "queue": len(self._waiting)}

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing waits any more; False when `timeout_s` passed first."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, timeout_s)

    def close(self) -> None:
        """Store what waits, then stop; what a stuck disk has not taken after `CLOSE_S` is given up."""
        if not self.drain(CLOSE_S):
            log.error("Stopped with %d exchanges not stored.", self.counts()["queue"])
        self._thread.shutdown(cancel_futures=True)

    def _derive(self, capture: Capture) -> None:
        try:
            record = derive_record(capture)
        except Exception as error:  # boundary: bytes from outside that no parser foresaw
            log.warning("Exchange %s is recorded as bytes alone (%s).", capture.id, type(error).__name__)
            record = bare_record(capture, f"It could not be read ({type(error).__name__}: {error}).")
        self._write(capture.tenant, record, capture)

    def _write(self, tenant: str, record: Record, fallback: Capture | None) -> None:
        def settle(future: Future[str]) -> None:
            error = future.exception()
            if error is None or fallback is None or isinstance(error, StoreError):
                self._settle(record.id, error)
                return
            log.warning("Exchange %s is recorded as bytes alone (%s).", record.id, type(error).__name__)
            bare = bare_record(fallback, f"It could not be stored whole ({type(error).__name__}).")
            self._write(tenant, bare, None)

        try:
            view = self.store.scoped(tenant)
            view.submit(lambda conn: _insert(conn, tenant, record)).add_done_callback(settle)
        except Exception as error:  # boundary: whatever the store does, replies go on
            self._settle(record.id, error)

    def _settle(self, exchange_id: str, error: BaseException | None) -> None:
        with self._changed:
            self._queue_bytes -= self._waiting.pop(exchange_id, 0)
            if error is None:
                self._num_stored += 1
            else:
                self._num_lost += 1
            self._changed.notify_all()
        if error is not None:
            log.error("Exchange %s is lost to learning: %s", exchange_id, error)


def _insert(conn: sa.Connection, tenant: str, record: Record) -> str:
    exchange_id = insert_exchange(conn, tenant, record)
    if record.caller.purpose == Purpose.EXAM:
        withhold_early(conn, tenant, exchange_id)
    return exchange_id
