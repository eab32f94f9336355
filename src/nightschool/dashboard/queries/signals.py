"""What a session says without anybody judging it, and on which of its messages that is seen."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict
from types import SimpleNamespace

import sqlalchemy as sa

from nightschool.feedback.implicit.loading import TIMELESS, Told, Visit, see
from nightschool.feedback.implicit.seen import Call
from nightschool.feedback.implicit.signals import AMOUNTS, about, read_signals
from nightschool.feedback.record import feedback_value
from nightschool.store.schema import sessions
from nightschool.types import Branch, Json, Purpose

MOST_EXCHANGES = 500  # of a session that is read for a page
MOST_SPANS = 50  # of one signal


def session_signals(conn: sa.Connection, tenant: str, row: Json, told: Told, now: float) -> list[Json]:
    """The signals that are there, each with its places. Nothing of an exam, a sub-agent or a very long session. Three
    queries."""
    short = len(told.calls[row["id"]]) <= MOST_EXCHANGES
    if not short or row["purpose"] != Purpose.SERVE.value or row["parent_session_id"]:
        return []
    visit = Visit(row["id"], row["principal"], _next_at(conn, tenant, row, now))
    seen = next(see(conn, tenant, [visit], told, now))
    return [
        {
            "name": name,
            "about": about(name),
            "value": found.value,
            "spans": [asdict(span) for span in found.spans[:MOST_SPANS]],
        }
        for name, found in read_signals(seen).items()
        if name not in AMOUNTS and found is not None and found.value > 0
    ]


def told_of(
    session_id: str, calls: Mapping[str, Json], replies: Mapping[tuple[str, int], Json], said: Sequence[Json]
) -> Told:
    """What a page has read of a session, as signals take it."""
    made = [_call(call, replies.get((call["id"], 0), {})) for call in calls.values()]
    timeless = any(TIMELESS in (call["flags"] or ()) for call in calls.values())
    judged = [feedback_value(SimpleNamespace(**item)) for item in said]
    return Told({session_id: made}, {session_id: judged}, frozenset({session_id} if timeless else ()))


def marks_on(signals: Iterable[Json], message: Json, on_branch: Container[str]) -> list[Json]:
    """Signals seen on one message of a branch: in its text, where the exchange lies on that branch, or in how its
    exchange went. Each once, with the first words it was seen in."""
    own = {call["id"] for call in (*message["exchanges"], *message["unanswered"])}
    marks = []
    for signal in signals:
        here = [
            span["text"]
            for span in signal["spans"]
            if (span["position"] is None and span["exchange_id"] in own)
            or (span["position"] == message["position"] and span["exchange_id"] in on_branch)
        ]
        if here:
            marks.append({"name": signal["name"], "about": signal["about"], "text": here[0], "times": len(here)})
    return marks


def _next_at(conn: sa.Connection, tenant: str, row: Json, now: float) -> float | None:
    s = sessions.c
    later = sa.select(sa.func.min(s.first_at)).where(
        s.tenant == tenant,
        s.agent == row["agent"],
        s.principal == row["principal"],
        s.last_at > row["first_at"],
        s.first_at > row["first_at"],
        s.first_at <= now,
        s.purpose == Purpose.SERVE.value,
    )
    return conn.scalar(later)


def _call(call: Json, reply: Json) -> Call:
    return Call(
        id=call["id"],
        started_at=call["started_at"],
        ended_at=call["started_at"] + (call["duration_ms"] or 0.0) / 1000,
        status=call["status"],
        branch=Branch(call["branch"]),
        above_id=call["parent_exchange_id"],
        leaf_hash=call["prompt_message"],
        reply_hash=reply.get("message_hash"),
        retry_of=call["retry_of"],
        finish_reason=reply.get("finish_reason"),
    )
