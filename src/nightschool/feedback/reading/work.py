"""Reading what nobody has read yet, in small writes: stopped anywhere, run it again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nightschool.errors import RefusedError
from nightschool.feedback.reading.asking import Judge
from nightschool.feedback.reading.local import LOCAL, read_locally
from nightschool.feedback.reading.settings import JudgeSettings
from nightschool.feedback.reading.stored import find_unread, insert_readings, said_in
from nightschool.feedback.reading.values import Note, Reading, Said
from nightschool.store.database import Store
from nightschool.types import FeedbackKind

BATCH = 50  # texts of one transaction
AT_ONCE = 8  # texts that are put to a judge at a time
MAX_TEXTS = 100_000

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class JudgeRun:
    """What one run of a judge came to: texts read, requests sent, and texts that wait for the next budget."""

    reader: str
    read: int
    requests: int
    waiting: int


def read_by_rules(store: Store, limit: int = MAX_TEXTS, tell: Tell = lambda _line: None) -> int:
    """Read up to `limit` texts by the rules; how many were. Corrections without words stay unread."""
    with store.read() as conn:
        items = find_unread(conn, store.tenant, LOCAL, limit)
    count = 0
    for start in range(0, len(items), BATCH):
        with store.read() as conn:
            said = said_in(conn, store.tenant, items[start : start + BATCH])
        found = list(map(read_locally, said))
        count += store.write(lambda conn, found=found: insert_readings(conn, store.tenant, found, time.time()))
        tell(f"{count} texts")
    return count


def read_by_judge(store: Store, settings: JudgeSettings, tell: Tell = lambda _line: None) -> JudgeRun:
    """Put texts to a judge that it has not read, oldest first, until its budget is spent. What it read is kept.

    Raises:
        UpstreamError: the judge did not answer; what it read before is stored.
        ConfigError: its key is missing.
    """
    return asyncio.run(_judged(store, Judge(settings), tell))


async def _judged(store: Store, judge: Judge, tell: Tell) -> JudgeRun:
    with store.read() as conn:
        items = find_unread(conn, store.tenant, judge.name, MAX_TEXTS)
    items = [item for item in items if item.kind == FeedbackKind.TEXT]
    count, done = 0, 0
    try:
        while done < len(items) and judge.texts_left:
            some = items[done : done + min(AT_ONCE, judge.texts_left)]
            with store.read() as conn:
                said = said_in(conn, store.tenant, some)
            outcomes = await asyncio.gather(*(_read(judge, one) for one in said), return_exceptions=True)
            found = [outcome for outcome in outcomes if isinstance(outcome, Reading)]
            count += store.write(lambda conn, found=found: insert_readings(conn, store.tenant, found, time.time()))
            _raise_first(outcomes)
            done += len(some)
            tell(f"{done} of {len(items)} texts")
    finally:
        await judge.close()
    return JudgeRun(judge.name, count, judge.requests, len(items) - count)


async def _read(judge: Judge, said: Said) -> Reading:
    """What the judge makes of a text; one that steers its reader is not put to it."""
    local = read_locally(said)
    if Note.STEERS in local.notes:
        return Reading(said.feedback_id, judge.name, local.polarity, place=local.place, notes=local.notes)
    return await judge.read(said)


def _raise_first(outcomes: Sequence[Reading | BaseException]) -> None:
    """A budget that ends within a text is no failure: the text waits."""
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, RefusedError):
            raise outcome
