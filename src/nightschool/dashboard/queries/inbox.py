"""One item of feedback beside its trace: what it is about, what it says, what became of it, and what comes after it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import sqlalchemy as sa

from nightschool.dashboard.marks import one_line
from nightschool.dashboard.queries.feedback import INBOX_CAP, asked_state, inbox_counts, neighbours
from nightschool.dashboard.queries.scope import Scope
from nightschool.dashboard.queries.session import HIDDEN, passage
from nightschool.feedback.inbox import MARK, ORIGIN, UNDO
from nightschool.feedback.reading.stored import current_readings
from nightschool.feedback.reading.values import READ_KINDS, Reply, Said
from nightschool.feedback.record import feedback_value
from nightschool.feedback.reward import RewardRule, combine
from nightschool.store.matching import content_text
from nightschool.store.schema import feedback, sessions
from nightschool.types import FeedbackKind, Json

NEWER, OLDER = 6, 24  # items of the list that stand beside the one that is read
REPLY_CHARS = 80


def inbox_item(conn: sa.Connection, scope: Scope, item_id: str) -> Json | None:
    """The item, or None when there is none. At most 12 queries."""
    row = _item(conn, scope.tenant, item_id)
    if row is None:
        return None
    above, below = neighbours(conn, scope, row, NEWER, OLDER)
    later = below[:1] or above[:1]
    data: Json = {
        "item": row,
        "above": above,
        "below": below,
        "next": later[0]["id"] if later else None,
        "previous": above[-1]["id"] if above else None,
        "state": asked_state(scope),
        "agent": scope.text("agent"),
        "counts": inbox_counts(conn, scope),
        "cap": INBOX_CAP,
        "history": [],
        "messages": [],
        "replies": [],
        "reply": None,
        "current": False,
        "turns": {},
        "num_theirs": 0,
        "selected": None,
        "reading": None,
        "reward": None,
    }
    if row["session_id"] is not None:
        data |= _beside(conn, scope, row)
    return data


def next_item(conn: sa.Connection, scope: Scope, item_id: str) -> str | None:
    """The item that comes after this one in its filter: the older one, else the nearest newer one. Three queries."""
    row = _item(conn, scope.tenant, item_id)
    if row is None:
        return None
    above, below = neighbours(conn, scope, row, 1, 1)
    return next((found["id"] for found in (*below, *above)), None)


def _item(conn: sa.Connection, tenant: str, item_id: str) -> Json | None:
    f, s = feedback.c, sessions.c
    about = feedback.outerjoin(sessions, sa.and_(s.tenant == f.tenant, s.id == f.session_id))
    shown = [column for column in feedback.columns if column.name not in HIDDEN]
    columns = (*shown, s.agent, s.preview, s.principal, s.purpose, s.num_exchanges, s.first_at)
    query = sa.select(*columns).select_from(about).where(f.tenant == tenant, f.id == item_id)
    row = conn.execute(query).mappings().first()
    return None if row is None else dict(row)


def _beside(conn: sa.Connection, scope: Scope, row: Json) -> Json:
    """The trace around what the item is about, and everything that was said and done about it."""
    at = replace(scope, params={"x": row["exchange_id"] or ""})
    found = passage(conn, at, row["session_id"])
    replies = [
        {
            "exchange": own["id"],
            "turn": found["turns"].get(own["id"]),
            "text": message["text"],
            "words": one_line(message["text"] or _called(message), REPLY_CHARS),
        }
        for message in found["messages"]
        for own in message["exchanges"][:1]
    ]
    target = row["exchange_id"] or (replies[-1]["exchange"] if replies else None)
    said = [item for item in found["said"] if item["origin"] != ORIGIN or item["kind"] != "category"]
    for message in found["messages"]:
        message["feedback"] = [item for item in message["feedback"] if item in said]
    return {
        **{name: found[name] for name in ("messages", "selected", "from", "to", "num_branch", "is_main", "turns")},
        "replies": replies,
        "reading": _reading(conn, scope.tenant, row, replies),
        "reward": _reward(found["said"], row["exchange_id"]),
        "reply": next((reply for reply in replies if reply["exchange"] == target), None),
        "session_said": [item for item in said if item["exchange_id"] is None],
        "current": any(item["id"] == row["id"] and item["current"] for item in found["said"]),
        "history": _history(found["said"], row["id"]),
        "num_theirs": sum(item["author"] == row["author"] and item["source"] == row["source"] for item in said),
    }


def _reading(conn: sa.Connection, tenant: str, row: Json, replies: list[Json]) -> Json | None:
    """What the item means, as a run takes it; `None` where there are no words. One query."""
    words = content_text(row["value"].get("content")) if isinstance(row["value"], dict) else row["value"]
    if row["kind"] not in READ_KINDS or not isinstance(words, str) or not words.strip():
        return None
    known = tuple(
        Reply(reply["exchange"], reply["turn"], reply["text"]) for reply in replies if reply["turn"] is not None
    )
    said = Said(row["id"], FeedbackKind(row["kind"]), words, row["source"], row["exchange_id"], known)
    found = current_readings(conn, tenant, [said])[row["id"]]
    place = found.place
    return {
        "reader": found.reader,
        "polarity": found.polarity.value,
        "probability": found.probability,
        "wish": found.wish,
        "hint": found.hint,
        "notes": [str(note) for note in found.notes],
        "votes": list(found.votes),
        "exchange": None if place is None else place.exchange_id,
        "turn": None if place is None else place.turn,
    }


def _reward(said: list[Json], exchange_id: str | None) -> Json:
    """What everything that was said about the item's target says together, thumbs taken at their word."""
    about = [feedback_value(SimpleNamespace(**item)) for item in said if item["exchange_id"] == exchange_id]
    found = combine(about, RewardRule())
    return {"value": found.value, "reason": found.reason}


def _history(said: list[Json], item_id: str) -> list[Json]:
    """What people did about the item, oldest first; `undone` where it was taken back."""
    marks = [item for item in said if item["origin"] == ORIGIN and item["name"] in (MARK, UNDO)]
    undone = {item["supersedes"] for item in marks if item["name"] == UNDO}
    return [
        {
            "id": item["id"],
            "act": item["value"],
            "by": item["author"],
            "at": item["received_at"],
            "reason": (item["act"] or {}).get("reason"),
            "undone": item["id"] in undone,
        }
        for item in marks
        if item["name"] == MARK and (item["act"] or {}).get("about") == item_id
    ]


def _called(message: Json) -> str:
    return ", ".join(f"→ {call['name']}({call['arguments']})" for call in message["tool_calls"])
