"""The inbox: one item beside its trace, and what people do with it, each act a POST that leads to the next item."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote

import sqlalchemy as sa
from starlette.requests import Request

from nightschool.dashboard import sentences
from nightschool.dashboard.admission import Acting
from nightschool.dashboard.formatting import short_id
from nightschool.dashboard.html import link
from nightschool.dashboard.marks import one_line, plain
from nightschool.dashboard.pages import Bytes, Elsewhere, Page
from nightschool.dashboard.queries.feedback import UNREAD, feedback_csv
from nightschool.dashboard.queries.inbox import inbox_item, next_item
from nightschool.dashboard.queries.scope import Scope
from nightschool.errors import InputError, MissingError
from nightschool.feedback.inbox import Accepted, Inbox
from nightschool.types import Json

MAX_FORM_BYTES = 2**19
FORM = "application/x-www-form-urlencoded"
DIRECTIONS = {"good": True, "bad": False}

Fields = Mapping[str, str]

ACTS: dict[str, Callable[[Inbox, str, Fields], str]] = {
    "accept": lambda inbox, item, fields: inbox.accept(item, _accepted(fields)),
    "judge": lambda inbox, item, fields: inbox.judge(item, fields.get("verdict", "")),
    "move": lambda inbox, item, fields: inbox.move(item, fields.get("to", "")),
    "correct": lambda inbox, item, fields: inbox.correct(item, fields.get("to", ""), _lines(fields.get("text", ""))),
    "exclude": lambda inbox, item, fields: inbox.exclude(item, fields.get("reason", "")),
    "undo": lambda inbox, item, _fields: inbox.undo(item),
}
SAID = {
    "accept": "Accepted.",
    "up": "Judged up.",
    "down": "Judged down.",
    "unclear": "Unclear: it does not hold.",
    "move": "Moved.",
    "correct": "Correction saved.",
    "exclude": "Excluded.",
    "undo": "Taken back.",
}
STAYS = ("move", "undo")  # what is looked at afterwards is the same item, or its copy


@dataclass(frozen=True, slots=True)
class Act:
    """An act as a form asks for it."""

    name: str
    item_id: str
    fields: Fields

    @property
    def told(self) -> str:
        """The name under which the act is told: a verdict's own."""
        return self.fields.get("verdict", "") if self.name == "judge" else self.name


def inbox_page(conn: sa.Connection, scope: Scope, path: Mapping[str, str]) -> Page:
    data = inbox_item(conn, scope, path["id"])
    if data is None:
        why = "The store holds no feedback with this id; it may belong to another state folder."
        name = one_line(plain(short_id(path["id"])), 40)
        raise MissingError(f"There is no feedback “{name}”.", why, "nightschool feedback list")
    drawn = {"flash": _flash(scope), "said": SAID}
    command = f"nightschool feedback show {data['item']['target_id']}"
    return Page("inbox", f"Feedback {short_id(path['id'])}", sentences.inbox(data), data, command, drawn)


def csv_file(conn: sa.Connection, scope: Scope, path: Mapping[str, str]) -> Bytes:
    """The list's filter as CSV."""
    data, _ = feedback_csv(conn, scope)
    return Bytes(data, "text/csv; charset=utf-8", "feedback.csv")


def sign_in_page(conn: sa.Connection, scope: Scope, path: Mapping[str, str]) -> Elsewhere:
    """Back to the inbox, once the browser has a key that allows to act; without one it is asked."""
    to = scope.text("to")
    return Elsewhere(to if to.startswith("/feedback") and "\\" not in to else "/feedback")


async def read_act(request: Request, acting: Acting) -> Act:
    """The form that was sent. Raises: InputError for one that this server did not draw for this person."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        raise _refused("Only a form of the inbox changes something here")
    raw = b""
    async for part in request.stream():
        raw += part
        if len(raw) > MAX_FORM_BYTES:
            raise _refused(f"The form is larger than {MAX_FORM_BYTES} bytes")
    try:
        fields = dict(parse_qsl(raw.decode("ascii"), keep_blank_values=True, strict_parsing=bool(raw), errors="strict"))
    except ValueError as error:
        raise _refused("The form is not readable") from error
    if not hmac.compare_digest(fields.get("form_token", "").encode(), acting.form_token.encode()):
        raise _refused("The form was drawn for somebody else, or by another server: load the page again")
    name = request.path_params["act"]
    if name not in ACTS:
        raise MissingError("No such act.", f"An act is one of {', '.join(ACTS)}.", "nightschool feedback list")
    return Act(name, request.path_params["id"], fields)


def do(act: Act, inbox: Inbox) -> str:
    """Do it, inside a write of the store; the id of the item to look at when the act stays with it."""
    return ACTS[act.name](inbox, act.item_id, act.fields)


def afterwards(conn: sa.Connection, scope: Scope, act: Act, item_id: str) -> Elsewhere:
    """The next item of the filter; the item itself after an act that stays with it; the list when nothing is left."""
    filters = {"state": act.fields.get("state", ""), "agent": act.fields.get("agent", "")}
    told = {**filters, "did": act.told, "item": act.item_id}
    if act.name == "undo":
        told = filters
    shown = item_id if act.name in STAYS else next_item(conn, scope, act.item_id)
    return Elsewhere(link("/feedback" if shown is None else f"/feedback/{quote(shown, safe='')}", told))


def filters_of(act: Act) -> Json:
    """The parameters of the list that the form came from."""
    return {"state": act.fields.get("state", "") or UNREAD, "agent": act.fields.get("agent", "")}


def _flash(scope: Scope) -> Json | None:
    """What was just done, and to which item, as the URL says."""
    told = SAID.get(scope.text("did"))
    return None if told is None or not scope.text("item") else {"said": told, "item": scope.text("item")}


def _lines(text: str) -> str:
    """What a browser sends of a field of several lines, as it was written."""
    return text.replace("\r\n", "\n")


def _accepted(fields: Fields) -> Accepted:
    up = DIRECTIONS.get(fields.get("polarity", ""))
    return Accepted(up, fields.get("place") or None, fields.get("reader") or None)


def _refused(why: str) -> InputError:
    return InputError("Nothing was changed.", f"{why}.", "Load the page again.")
