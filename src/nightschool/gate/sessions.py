"""The sessions of an exam as the store knows them: who talked to which policy, and how it ended."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from nightschool.rendering.toolcalls import parse_reply, write_calls
from nightschool.store import schema
from nightschool.store.exchanges import session_exchanges
from nightschool.types import Exchange, FeedbackKind, Json, Purpose

# Answers of an engine, a key check or a rate limit: evidence, independent of the agent, that it was not at fault.
# Any other 4xx refuses what the session itself had grown into (too long, malformed).
INFRASTRUCTURE_STATUS = frozenset({401, 403, 404, 408, 409, 425, 429})


@dataclass(frozen=True, slots=True)
class ExamSession:
    """One customer's session with one policy.

    `success` is `None` where the session says nothing about the agent; `reason` then says why. A failure
    that nobody had to report (no reply, a reply that broke off) carries its reason too.
    """

    id: str
    principal: str
    policy_version: str
    exchanges: tuple[Exchange, ...]
    success: float | None
    reason: str | None = None


def exam_sessions(conn: sa.Connection, tenant: str, exam_id: str, as_of: float, running: bool) -> list[ExamSession]:
    """All sessions of an exam as they stood at `as_of`, in order of their first exchange.

    While the exam is `running`, a session may still go on: what nobody has reported yet is not judged.
    """
    t = schema.exchanges
    query = (
        sa.select(t.c.id, t.c.session_id, t.c.principal, t.c.policy_version, t.c.http_status)
        .where(t.c.tenant == tenant, t.c.exam_id == exam_id, t.c.purpose == Purpose.EXAM, t.c.started_at <= as_of)
        .order_by(t.c.started_at, t.c.id)
    )
    rows: dict[str, list[sa.RowMapping]] = defaultdict(list)
    for row in conn.execute(query).mappings():
        rows[row["session_id"]].append(row)
    outcomes = _outcomes(conn, tenant, exam_id, as_of)
    found = []
    for session_id, own in rows.items():
        ids = {row["id"] for row in own}
        loaded = session_exchanges(conn, tenant, session_id)
        exchanges = tuple(exchange for exchange in loaded if exchange.id in ids)
        success, reason = judge_session(exchanges, own[-1]["http_status"], outcomes.get(session_id))
        if running and session_id not in outcomes:
            success, reason = None, "no outcome was reported"
        first = own[0]  # the store keeps an exam's versions in sessions of their own
        found.append(ExamSession(session_id, first["principal"], first["policy_version"], exchanges, success, reason))
    return found


def judge_session(
    exchanges: tuple[Exchange, ...], last_http_status: int | None, outcome: float | None
) -> tuple[float | None, str | None]:
    """Success and reason of one session (laws 3 and 9).

    What the agent caused is scored as failure; only independent evidence of an infrastructure fault takes the
    session out, also when its outcome was reported; silence about the outcome is missing, not failure.
    """
    last = exchanges[-1]
    if last.status == "error":
        if last_http_status is None or last_http_status >= 500 or last_http_status in INFRASTRUCTURE_STATUS:
            return None, f"the engine failed ({last_http_status or 'no answer'})"
        return 0.0, f"the agent's request was refused ({last_http_status})"
    if outcome is not None:
        return outcome, None
    if last.status == "aborted":
        return None, "the client left before the reply ended"
    broken = broken_reply(last)
    return (0.0, broken) if broken else (None, "no outcome was reported")


def broken_reply(exchange: Exchange) -> str | None:
    """Why the reply leaves its customer without an answer, or `None` if it is one."""
    if not exchange.choices:
        return "the agent did not answer"
    choice = exchange.choices[0]
    text = write_calls(choice.message)
    if not text.strip():
        return "the agent's reply was empty"
    if choice.finish_reason == "length":
        return "the agent's reply did not end"
    return None if parse_reply(text).valid else "the agent's tool call was malformed"


def _outcomes(conn: sa.Connection, tenant: str, exam_id: str, as_of: float) -> dict[str, float]:
    """The latest readable outcome of each session of the exam."""
    f, t = schema.feedback, schema.exchanges
    own = sa.select(t.c.session_id).where(t.c.tenant == tenant, t.c.exam_id == exam_id)
    query = (
        sa.select(f.c.session_id, f.c.value)
        .where(f.c.tenant == tenant, f.c.kind == FeedbackKind.OUTCOME, f.c.received_at <= as_of)
        .where(f.c.session_id.in_(own))
        .order_by(f.c.received_at, f.c.id)
    )
    read = {row.session_id: read_outcome(row.value) for row in conn.execute(query)}
    return {session_id: value for session_id, value in read.items() if value is not None}


def read_outcome(value: Any) -> float | None:
    """Success within 0 and 1 from an outcome's value: true/false, a number, or {"success": either}."""
    if isinstance(value, dict):
        value = value.get("success")
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, int | float) and math.isfinite(value) and 0 <= value <= 1:
        return float(value)
    return None


def reply_messages(session: ExamSession) -> list[tuple[Json, tuple[Json, ...]]]:
    """Each reply that arrived whole, with the tools it was offered."""
    return [(x.choices[0].message, x.tools) for x in session.exchanges if x.status == "ok" and x.choices]
