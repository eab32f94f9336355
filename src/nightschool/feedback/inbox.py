"""What people do with feedback in the inbox: accept, judge, move, correct, exclude, and take it back.

Nothing is changed in place (law 5). An act is a mark, a category on the item's own target that names the item in its
evidence, and what the act adds: a thumb, a correction, a copy on another reply. A mark that takes its item out of what
holds supersedes it. Taking an act back supersedes the mark and what it added; an item that was out returns as a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from nightschool.access.privacy import Privacy
from nightschool.access.redaction import redactor
from nightschool.errors import InputError, MissingError
from nightschool.feedback.record import insert_feedback
from nightschool.feedback.reward import outcome
from nightschool.feedback.values import NewFeedback, checked_value
from nightschool.store.blobs import in_parts
from nightschool.store.ids import new_id
from nightschool.store.schema import exchanges
from nightschool.store.schema import feedback as table
from nightschool.types import FeedbackKind, Json, Purpose, TargetKind

ORIGIN, MARK, UNDO = "inbox", "inbox", "inbox undo"
VERDICTS = {"up": True, "down": False, "unclear": None}
MAX_REASON_CHARS = 400


@dataclass(frozen=True, slots=True)
class Person:
    """Who works the inbox. `source` is what their judgements carry; `admin` as the store's feedback knows it."""

    author: str
    source: str
    key_id: str | None
    admin: bool


@dataclass(frozen=True, slots=True)
class Accepted:
    """A reading as it was shown: which way it points (None: neither), the reply it is about, and who read."""

    up: bool | None
    exchange_id: str | None = None
    reader: str | None = None


@dataclass(frozen=True, slots=True)
class Inbox:
    """One person's acts inside one write of the store. Each returns the id of the item to look at afterwards.

    Raises: MissingError for an item that is not there; InputError for one that an act cannot be done to; RefusedError
    for a target in an exam.
    """

    conn: sa.Connection
    tenant: str
    person: Person
    now: float
    privacy: Privacy = field(default_factory=Privacy)

    def accept(self, item_id: str, reading: Accepted) -> str:
        """The reading is right: its target becomes the item's, and its direction a thumb of this person's."""
        item = self._open(item_id)
        made, marked = [], item
        if reading.exchange_id is not None and reading.exchange_id != item.exchange_id:
            marked = self._item(self._copy(item, reading.exchange_id))
            made.append(marked.id)
        if item.kind == FeedbackKind.TEXT and reading.up is not None:
            made.append(self._thumb(marked, reading.up))
        told = {"reader": reading.reader} if reading.reader else {}
        if marked is not item:
            made.append(self._mark(marked, "accepted", told))
        self._mark(item, "accepted", {**told, "made": made}, out=marked is not item)
        return item.id

    def judge(self, item_id: str, verdict: str) -> str:
        """What the item means for the reply. An unclear item, and a thumb or outcome judged otherwise, do not hold."""
        if verdict not in VERDICTS:
            raise _refused(f"A verdict is one of {', '.join(VERDICTS)}")
        item, up = self._open(item_id), VERDICTS[verdict]
        made = [] if up is None else [self._thumb(item, up)]
        self._mark(item, verdict, {"made": made}, out=up is None or _says(item) not in (None, up))
        return item.id

    def move(self, item_id: str, exchange_id: str) -> str:
        """The item is about another reply of its session. Returns the copy there, which nobody has handled yet."""
        item = self._open(item_id)
        if exchange_id == item.exchange_id:
            raise _refused("It is about that reply already")
        copy = self._copy(item, exchange_id)
        self._mark(item, "moved", {"made": [copy]}, out=True)
        return copy

    def correct(self, item_id: str, exchange_id: str, text: str) -> str:
        """What the reply should have been."""
        item = self._open(item_id)
        self._check_reply(item, exchange_id)
        value = checked_value(FeedbackKind.CORRECTION, self._clean(text))
        here = {"target_kind": TargetKind.EXCHANGE, "target_id": exchange_id}
        made = self._add(**here, kind=FeedbackKind.CORRECTION, value=value, name="correction", evidence=_about(item))
        self._mark(item, "corrected", {"made": [made]})
        return item.id

    def exclude(self, item_id: str, reason: str = "") -> str:
        """The item says nothing that holds; it stays in the history, with the reason."""
        item = self._open(item_id)
        why = self._clean(reason.strip()[:MAX_REASON_CHARS])
        self._mark(item, "excluded", {"reason": why} if why else {}, out=True)
        return item.id

    def undo(self, item_id: str) -> str:
        """Take the last act on the item back. Returns the item, or the copy of it that holds again."""
        item = self._item(item_id)
        handled = live_marks(self.conn, self.tenant, [item.session_id or ""])
        marks = handled.get(item.id)
        if not marks:
            raise _refused("There is nothing to take back")
        mark = marks[-1]
        made = [str(one) for one in (mark.evidence or {}).get("made", ())]
        if any(other.id not in made for one in made for other in handled.get(one, ())):
            raise _refused("Its copy was handled since: take that back first")
        for one in made:
            self._supersede(self._item(one), item)
        self._supersede(mark, item)
        return self._copy(item, None) if mark.supersedes == item.id else item.id

    def _open(self, item_id: str) -> sa.Row:
        """The item, if an act can be done to it."""
        item = self._item(item_id)
        if item.state != "matched" or item.session_id is None:
            raise _refused("Its exchange has not arrived")
        if item.origin == ORIGIN:
            raise _refused("It was said in the inbox itself: take the act back instead")
        replaced = sa.select(table.c.id).where(table.c.tenant == self.tenant, table.c.supersedes == item.id)
        if self.conn.execute(replaced.limit(1)).first() is not None:
            raise _refused("It does not hold any more: something has replaced it")
        return item

    def _item(self, item_id: str) -> sa.Row:
        row = self.conn.execute(sa.select(table).where(table.c.tenant == self.tenant, table.c.id == item_id)).first()
        if row is None:
            raise MissingError(
                "There is no such feedback.", "The store holds none with this id.", "nightschool feedback"
            )
        return row

    def _thumb(self, item: sa.Row, up: bool) -> str:
        return self._add(**_here(item), kind=FeedbackKind.THUMB, value=up, name="thumb", evidence=_about(item))

    def _mark(self, item: sa.Row, act: str, told: Json, out: bool = False) -> str:
        said = {"kind": FeedbackKind.CATEGORY, "value": act, "name": MARK, "evidence": {**_about(item), **told}}
        return self._add(**_here(item), **said, supersedes=item.id if out else None)

    def _supersede(self, row: sa.Row, item: sa.Row) -> None:
        said = {"kind": FeedbackKind.CATEGORY, "value": "undone", "name": UNDO, "evidence": _about(item)}
        self._add(**_here(row), **said, supersedes=row.id)

    def _copy(self, item: sa.Row, exchange_id: str | None) -> str:
        """The item again, on another reply or where it was: said by whom it was said, with the trust that it had."""
        here = _here(item)
        if exchange_id is not None:
            self._check_reply(item, exchange_id)
            here = {"target_kind": TargetKind.EXCHANGE, "target_id": exchange_id}
        scale = None if item.scale is None else (item.scale[0], item.scale[1])
        same = {
            name: getattr(item, name) for name in ("value", "name", "confidence", "observed_at", "origin", "key_id")
        }
        who = {"source": item.source, "author": item.author}
        evidence = {"copy_of": item.id, "by": self.person.author}
        return self._add(**here, **same, **who, kind=FeedbackKind(item.kind), scale=scale, evidence=evidence)

    def _add(self, **said: Any) -> str:
        """Store one row; it has to land where it was meant to."""
        mine = {"source": self.person.source, "author": self.person.author, "key_id": self.person.key_id}
        item = NewFeedback(**{**mine, "origin": ORIGIN, "key": f"inbox:{new_id()}", **said})
        receipt = insert_feedback(self.conn, self.tenant, item, self.person.admin, self.now)
        if item.target_id not in (receipt.exchange_id, receipt.session_id):
            raise _refused("Its target is known by a name that means something else, too")
        return receipt.id

    def _check_reply(self, item: sa.Row, exchange_id: str) -> None:
        e = exchanges.c
        query = sa.select(e.purpose).where(
            e.tenant == self.tenant, e.id == exchange_id, e.session_id == item.session_id
        )
        if self.conn.scalar(query) != Purpose.SERVE.value:
            raise _refused("That reply is none of the same session")

    def _clean(self, text: str) -> str:
        return str(redactor(self.privacy).value(text))


def is_unread(f: Any) -> sa.ColumnElement[bool]:
    """Whether a row of feedback (its columns `f`) waits for a person: it holds, and nobody marked it."""
    later = table.alias()
    replaced = sa.exists().where(later.c.tenant == f.tenant, later.c.supersedes == f.id)
    said = sa.and_(f.state == "matched", f.origin != ORIGIN, f.source != "implicit")
    return sa.and_(said, ~replaced, ~is_done(f))


def is_done(f: Any) -> sa.ColumnElement[bool]:
    """Whether a person has handled a row of feedback, and has not taken that back."""
    mark = table.alias()
    m = mark.c
    about = sa.and_(m.tenant == f.tenant, m.session_id == f.session_id, m.state == "matched", _is_mark(m))
    return sa.exists().where(about, m.evidence["about"].as_string() == f.id, ~_undone(m))


def is_said(f: Any) -> sa.ColumnElement[bool]:
    """Whether a row says something about the agent, and is no mark of the inbox."""
    return sa.not_(sa.and_(f.origin == ORIGIN, f.kind == FeedbackKind.CATEGORY.value))


def live_marks(conn: sa.Connection, tenant: str, session_ids: Sequence[str]) -> dict[str, list[sa.Row]]:
    """The marks that hold in these sessions, oldest first, by the item that each is about."""
    found: dict[str, list[sa.Row]] = {}
    m = table.c
    for some in in_parts(sorted(set(session_ids))):
        query = sa.select(table).where(m.tenant == tenant, m.session_id.in_(some), m.state == "matched", _is_mark(m))
        for row in conn.execute(query.where(~_undone(m)).order_by(m.received_at, m.id)):
            found.setdefault(str(row.evidence.get("about")), []).append(row)
    return found


def _is_mark(m: Any) -> sa.ColumnElement[bool]:
    return sa.and_(m.kind == FeedbackKind.CATEGORY.value, m.name == MARK, m.origin == ORIGIN)


def _undone(m: Any) -> sa.ColumnElement[bool]:
    undo = table.alias()
    return sa.exists().where(undo.c.tenant == m.tenant, undo.c.supersedes == m.id)


def _here(item: sa.Row) -> Json:
    """The item's own target, by the ids of this store."""
    if item.exchange_id is None:
        return {"target_kind": TargetKind.SESSION, "target_id": item.session_id}
    if item.target_kind == TargetKind.TOOL_CALL and item.tool_call is not None:
        return {"target_kind": TargetKind.TOOL_CALL, "target_id": item.exchange_id, "tool_call": item.tool_call}
    return {"target_kind": TargetKind.EXCHANGE, "target_id": item.exchange_id}


def _about(item: sa.Row) -> Json:
    return {"about": item.id}


def _says(item: sa.Row) -> bool | None:
    """Which way a thumb or an outcome points."""
    if item.kind == FeedbackKind.THUMB:
        return bool(item.value)
    value = outcome(item.value) if item.kind == FeedbackKind.OUTCOME else None
    return None if value is None else value >= 0.5


def _refused(why: str) -> InputError:
    return InputError("Nothing was changed.", f"{why}.", "nightschool feedback list")
