"""Puts captures into the store beside the traffic; its failures never reach a reply (law 14)."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from itertools import groupby

import sqlalchemy as sa

from nightschool.access.privacy import Privacy
from nightschool.access.redaction import redact
from nightschool.errors import NightschoolError, StoreError
from nightschool.feedback.record import withhold_early
from nightschool.gateway.capture import Capture, bare_record, derive_record
from nightschool.gateway.fidelity import Grader
from nightschool.store.database import Store
from nightschool.store.exchanges import insert_exchanges
from nightschool.store.failpoints import fail_point
from nightschool.store.records import Record
from nightschool.types import Json, Purpose

CLOSE_S = 60.0
# What a reply is not held up for comes into the store in batches: one look at a batch costs the traffic less
# than many at single exchanges. Units: seconds.
PAUSE_S = {"reply_first": 0.05, "before_reply": 0.0, "none": 1.0}
MAX_BATCH = 256
SECRETS_ONLY = Privacy()

log = logging.getLogger(__name__)

Pair = tuple[Capture, Record]


class Recorder:
    """One thread derives records, a batch at a time; the store's writer commits them.

    `max_queue_bytes` bounds what waits: beyond it captures are lost and counted rather than memory filled.
    `durability` is one of the three modes (docs/gateway.md); here it sets how long a batch gathers. `grader`
    says how far token ids can be trusted.
    """

    def __init__(
        self,
        store: Store,
        max_queue_bytes: int,
        durability: str = "reply_first",
        privacy: Privacy = SECRETS_ONLY,
        grader: Grader | None = None,
    ) -> None:
        self.store = store
        self._grader = grader or Grader()
        self._max_queue_bytes = max_queue_bytes
        self._pause_s = PAUSE_S[durability]
        self._privacy = privacy
        self._hurry = threading.Event()
        self._queue: queue.SimpleQueue[Capture | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._waiting: dict[str, tuple[int, Future[bool]]] = {}  # bytes and outcome by exchange id
        self._queue_bytes = 0
        self._counts = {"stored": 0, "lost": 0}
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def submit(self, capture: Capture) -> Future[bool]:
        """Take a finished capture; returns at once and never raises. The future tells whether it was stored."""
        capture.watch.stop()
        size = capture.size_bytes
        outcome: Future[bool] = Future()
        with self._changed:
            full = self._queue_bytes + size > self._max_queue_bytes
            if full or self._closed:
                self._counts["lost"] += 1
                why = f"{self._queue_bytes} bytes are waiting already" if full else "the gateway has stopped"
                log.error("Exchange %s is not recorded: %s.", capture.id, why)
                outcome.set_result(False)
                return outcome
            self._waiting[capture.id] = size, outcome
            self._queue_bytes += size
            self._queue.put(capture)
        return outcome

    def counts(self) -> Json:
        """What /health shows: `stored` and `lost` since the start, and how many wait in `queue`."""
        with self._changed:
            return {**self._counts, "queue": len(self._waiting)}

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing waits any more; False when `timeout_s` passed first."""
        self._hurry.set()
        try:
            with self._changed:
                return self._changed.wait_for(lambda: not self._waiting, timeout_s)
        finally:
            self._hurry.clear()

    def close(self) -> None:
        """Store what waits, then stop; what a stuck disk has not taken after `CLOSE_S` is given up."""
        if not self.drain(CLOSE_S):
            log.error("Stopped with %d exchanges not stored.", self.counts()["queue"])
        with self._changed:
            self._closed = True
            self._queue.put(None)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            if self._pause_s:
                self._hurry.wait(self._pause_s)
            captures = [first]
            while not self._queue.empty() and len(captures) < MAX_BATCH:
                following = self._queue.get()
                if following is None:
                    self._queue.put(None)  # for the loop above, after this batch
                    break
                captures.append(following)
            self._take(captures)

    def _take(self, captures: Sequence[Capture]) -> None:
        """Derive a batch and hand it to the writer, tenant by tenant, in order of arrival."""
        ordered = sorted(captures, key=lambda capture: capture.tenant)
        for tenant, some in groupby(ordered, key=lambda capture: capture.tenant):
            pairs = [(capture, record) for capture in some if (record := self._derive(capture)) is not None]
            fail_point("recorder.derived")
            self._write(tenant, pairs)

    def _derive(self, capture: Capture) -> Record | None:
        """The record of a capture, of its bytes alone where it cannot be read; `None` when even that fails."""
        try:
            return redact(self._grader.grade(derive_record(capture)), self._privacy)
        except Exception as error:  # boundary: bytes from outside that no parser foresaw
            log.warning("Exchange %s is recorded as bytes alone (%s).", capture.id, type(error).__name__)
            why = f"It could not be read ({type(error).__name__}: {error})."
        try:
            return redact(bare_record(capture, why), self._privacy)
        except Exception as error:  # boundary: the thread goes on for the others
            self._settle([capture.id], error)
            return None

    def _write(self, tenant: str, pairs: Sequence[Pair]) -> None:
        """Store a batch. Where the store cannot take it whole, one by one; then as bytes alone."""

        def settle(future: Future[None]) -> None:
            error = future.exception()
            if error is None or isinstance(error, StoreError):
                self._settle((record.id for _, record in pairs), error)
            elif len(pairs) > 1:
                for pair in pairs:
                    self._write(tenant, [pair])
            else:
                self._write_bare(tenant, pairs[0][0], error)

        records = [record for _, record in pairs]
        self._submit(tenant, records, settle)

    def _write_bare(self, tenant: str, capture: Capture, error: BaseException) -> None:
        log.warning("Exchange %s is recorded as bytes alone (%s).", capture.id, type(error).__name__)
        bare = bare_record(capture, f"It could not be stored whole ({type(error).__name__}).")
        self._submit(
            tenant, [redact(bare, self._privacy)], lambda future: self._settle([capture.id], future.exception())
        )

    def _submit(self, tenant: str, records: Sequence[Record], settle: Callable[[Future[None]], None]) -> None:
        try:
            write = self.store.scoped(tenant).submit(lambda conn: _insert(conn, tenant, records))
        except Exception as error:  # boundary: whatever the store does, replies go on
            self._settle((record.id for record in records), error)
        else:
            write.add_done_callback(settle)

    def _settle(self, exchange_ids: Iterable[str], error: BaseException | None) -> None:
        settled: list[Future[bool]] = []
        with self._changed:
            for exchange_id in exchange_ids:
                size, outcome = self._waiting.pop(exchange_id)
                self._queue_bytes -= size
                self._counts["stored" if error is None else "lost"] += 1
                settled.append(outcome)
                if error is not None:
                    why = error if isinstance(error, NightschoolError) else type(error).__name__  # it may quote a body
                    log.error("Exchange %s is lost to learning: %s", exchange_id, why)
            self._changed.notify_all()
        for outcome in settled:
            outcome.set_result(error is None)


def _insert(conn: sa.Connection, tenant: str, records: Sequence[Record]) -> None:
    insert_exchanges(conn, tenant, records)
    for record in records:
        if record.caller.purpose == Purpose.EXAM:
            withhold_early(conn, tenant, record.id)
