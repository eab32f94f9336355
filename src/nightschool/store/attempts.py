"""A request sent again because its reply did not come: the earlier attempt, so that both count once.

Only an attempt that brought no reply is repeated; requests that are merely alike are samples of their own.
Where an SDK says that it sends the request again, the one earlier attempt is taken to be lost on its way back
even if it succeeded here, as long as no third like it makes a group of samples more likely.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from nightschool.store.foresight import Foresight
from nightschool.store.records import Record
from nightschool.store.schema import exchanges
from nightschool.store.tree import Node
from nightschool.store.worlds import FAILED, World, attempts
from nightschool.types import Branch

RETRY_S = 600.0  # after its end an attempt is given up by then
LOST_S = 60.0  # a reply lost on its way back is missed by then
SLACK_S = 0.25  # a client that gave up may ask again before the gateway has noticed
NUM_RECENT = 1000  # of an agent's exchanges are looked through for a reply that was lost


def earlier_attempt(ahead: Foresight, world: World, record: Record, nodes: Sequence[Node]) -> sa.Row | None:
    """The attempt that this request repeats, of those in `world`. One query on an index of failures alone."""
    if not nodes:
        return None
    prompt = nodes[-1].hash
    row = None if ahead.never_failed(prompt) else FAILED.first(ahead.now(), prompt=prompt, **world.values())
    if row is not None and 0.0 <= _waited(record, row) <= RETRY_S:
        return row
    return _lost(ahead.now(), world, record, nodes) if record.caller.is_retry else None


def _lost(conn: sa.Connection, world: World, record: Record, nodes: Sequence[Node]) -> sa.Row | None:
    at = record.timing.started_at
    recent = sa.and_(
        world.condition(exchanges),
        exchanges.c.started_at.between(at - RETRY_S, at),
        exchanges.c.branch != Branch.RETRY.value,
    )
    newest = attempts().where(recent).order_by(exchanges.c.started_at.desc()).limit(NUM_RECENT).subquery()
    rows = conn.execute(sa.select(newest).where(newest.c.prompt_message == nodes[-1].hash).limit(2)).all()
    return rows[0] if len(rows) == 1 and 0.0 <= _waited(record, rows[0]) <= LOST_S else None


def _waited(record: Record, row: sa.Row) -> float:
    """Seconds from the end of an attempt to this request."""
    return record.timing.started_at - row.started_at - (row.duration_ms or 0.0) / 1000 + SLACK_S
