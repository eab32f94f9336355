"""The sessions of an exam as the store knows them: who talked to which policy, and how it ended."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass

import sqlalchemy as sa

from nightschool.feedback.reward import outcome
from nightschool.rendering.toolcalls import parse_reply, write_calls
from nightschool.store import schema
from nightschool.store.blobs import get_blobs
from nightschool.store.tree import with_content
from nightschool.types import FeedbackKind, Json, Purpose, TargetKind

UNREPORTED = "no outcome was reported"

# Answers of an engine, a key check or a rate limit: evidence, independent of the agent, that it was not at fault.
# Any other 4xx refuses what the session itself had grown into (too long, malformed).
INFRASTRUCTURE_STATUS = frozenset({401, 403, 404, 408, 409, 425, 429})


@dataclass(frozen=True, slots=True)
class Turn:
    """One request to the agent and its first reply; `message` is `None` when none arrived."""

    status: str  # as docs/gateway.md lists them
    http_status: int | None
    tools: tuple[Json, ...]
    message: Json | None
    finish_reason: str | None


@dataclass(frozen=True, slots=True)
class ExamSession:
    """One customer's session with one policy.

    `success` is `None` where the session says nothing about the agent; `reason` then says why. A failure
    that nobody had to report (no reply, a reply that broke off) carries its reason too.
    """

    id: str
    principal: str
    policy_version: str
    turns: tuple[Turn, ...]
    success: float | None
    reason: str | None = None


def exam_sessions(conn: sa.Connection, tenant: str, exam_id: str, as_of: float, running: bool) -> list[ExamSession]:
    """All sessions of an exam as they stood at `as_of`, in order of their first exchange.

    While the exam is `running`, a session may still go on: what nobody has reported yet is not judged.
    """
    rows: dict[str, list[sa.Row]] = defaultdict(list)
    for row in _exchange_rows(conn, tenant, exam_id, as_of):
        rows[row.session_id].append(row)
    tools = _tools(conn, tenant, {row.tools_blob for own in rows.values() for row in own if row.tools_blob})
    outcomes = _outcomes(conn, tenant, exam_id, as_of)
    found = []
    for session_id, own in rows.items():
        turns = tuple(_turn(row, tools) for row in own)
        success, reason = judge_session(turns[-1], outcomes.get(session_id))
        if running and session_id not in outcomes:
            success, reason = None, UNREPORTED
        first = own[0]  # the store keeps an exam's versions in sessions of their own
        found.append(ExamSession(session_id, first.principal, first.policy_version, turns, success, reason))
    return found


def judge_session(last: Turn, outcome: float | None) -> tuple[float | None, str | None]:
    """Success and reason of a session that ended with `last` (laws 3 and 9).

    What the agent caused is scored as failure; only independent evidence of an infrastructure fault takes the
    session out, also when its outcome was reported; silence about the outcome is missing, not failure.
    """
    if last.status in ("error", "upstream_error", "truncated"):
        status = last.http_status
        if status is None or status < 400 or status >= 500 or status in INFRASTRUCTURE_STATUS:
            return None, f"the engine failed ({status or 'no answer'})"
        return 0.0, f"the agent's request was refused ({status})"
    if outcome is not None:
        return outcome, None
    if last.status in ("aborted", "client_closed"):
        return None, "the client left before the reply ended"
    broken = broken_reply(last)
    return (0.0, broken) if broken else (None, UNREPORTED)


def broken_reply(turn: Turn) -> str | None:
    """Why the reply leaves its customer without an answer, or `None` if it is one."""
    if turn.message is None:
        return "the agent did not answer"
    text = reply_text(turn.message)
    if text is None:
        return "the agent's tool call was malformed"
    if not text.strip():
        return "the agent's reply was empty"
    if turn.finish_reason == "length":
        return "the agent's reply did not end"
    return None if parse_reply(text).valid else "the agent's tool call was malformed"


def _exchange_rows(conn: sa.Connection, tenant: str, exam_id: str, as_of: float) -> list[sa.Row]:
    """Every exchange of the exam with its first reply, oldest first, in one query."""
    x, c, m, b = schema.exchanges, schema.choices, schema.messages, schema.blobs
    choice = sa.and_(c.c.tenant == x.c.tenant, c.c.exchange_id == x.c.id, c.c.index == 0)
    message = sa.and_(m.c.tenant == c.c.tenant, m.c.hash == c.c.message_hash)
    data, content = with_content()
    facts = (x.c.session_id, x.c.principal, x.c.policy_version, x.c.status, x.c.http_status, x.c.tools_blob)
    query = (
        sa.select(*facts, c.c.finish_reason, data)
        .select_from(x.outerjoin(c, choice).outerjoin(m, message).outerjoin(b, content))
        .where(x.c.tenant == tenant, x.c.session_id.in_(_session_ids(tenant, exam_id)))
        .where(x.c.exam_id == exam_id, x.c.purpose == Purpose.EXAM, x.c.started_at <= as_of)
        .order_by(x.c.started_at, x.c.id)
    )
    return list(conn.execute(query))


def _session_ids(tenant: str, exam_id: str) -> sa.Select[tuple[str]]:
    t = schema.sessions
    return sa.select(t.c.id).where(t.c.tenant == tenant, t.c.exam_id == exam_id)


def _turn(row: sa.Row, tools: dict[str, tuple[Json, ...]]) -> Turn:
    message = None if row.data is None else json.loads(row.data)
    return Turn(row.status, row.http_status, tools.get(row.tools_blob, ()), message, row.finish_reason)


def _tools(conn: sa.Connection, tenant: str, hashes: set[str]) -> dict[str, tuple[Json, ...]]:
    return {name: tuple(json.loads(data)) for name, data in get_blobs(conn, tenant, hashes).items()}


def _outcomes(conn: sa.Connection, tenant: str, exam_id: str, as_of: float) -> dict[str, float]:
    """The latest readable outcome of each session of the exam."""
    f = schema.feedback
    query = (
        sa.select(f.c.session_id, f.c.value)
        .where(f.c.tenant == tenant, f.c.kind == FeedbackKind.OUTCOME, f.c.received_at <= as_of)
        .where(f.c.session_id.in_(_session_ids(tenant, exam_id)), f.c.target_kind != TargetKind.TOOL_CALL)
        .order_by(f.c.received_at, f.c.id)
    )
    read = [(row.session_id, outcome(row.value)) for row in conn.execute(query)]
    return {session_id: value for session_id, value in read if value is not None}


def reply_text(message: Json) -> str | None:
    """A reply as its agent wrote it, calls included; `None` where its calls have no readable shape."""
    try:
        return write_calls(message)
    except (KeyError, TypeError, AttributeError):
        return None


def replies(session: ExamSession) -> list[tuple[Json, tuple[Json, ...]]]:
    """Each reply that arrived whole, with the tools it was offered."""
    return [(turn.message, turn.tools) for turn in session.turns if turn.status == "ok" and turn.message is not None]
