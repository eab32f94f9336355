"""POST and GET /v1/feedback."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson
import sqlalchemy as sa
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from nightschool.access.identity import Access
from nightschool.access.keys import Role
from nightschool.access.redaction import redactor
from nightschool.errors import InputError, NightschoolError
from nightschool.feedback.body import read_feedback
from nightschool.feedback.lookup import NAMED_BY, find_history, list_feedback, shown
from nightschool.feedback.private import hidden
from nightschool.feedback.record import KeyTakenError, Receipt, insert_feedback
from nightschool.feedback.settings import FeedbackSettings
from nightschool.feedback.values import NewFeedback
from nightschool.gateway.incoming import MAY_JUDGE, MAY_READ_FEEDBACK, read_body, require
from nightschool.gateway.replies import RequestRefused, as_refusal, error_object
from nightschool.store.database import Store
from nightschool.types import Json

MAX_FEEDBACK_BYTES = 2**20


class FeedbackRoutes:
    """Taking feedback and showing it."""

    def __init__(self, store: Store, access: Access, settings: FeedbackSettings) -> None:
        self.store = store
        self.access = access
        self.settings = settings

    async def post(self, request: Request) -> Response:
        """Answers after the commit: 200 matched, 202 parked, 409 for a key that belongs to other feedback."""
        try:
            identity = require(request.scope, self.access, MAY_JUDGE)
            raw = await read_body(request.scope, request.receive, MAX_FEEDBACK_BYTES)
            item = replace(read_feedback(parse_json(raw or b""), time.time()), key_id=identity.key_id)
            store = self.store.scoped(identity.tenant)
            receipt = await store_feedback(store, item, identity.role == Role.ADMIN, self.settings)
        except NightschoolError as error:
            return refused(error)
        return answer(receipt)

    async def get(self, request: Request) -> Response:
        """The history of a target, or the newest items in a `state`, oldest first; `current` holds what holds now."""
        try:
            identity = require(request.scope, self.access, MAY_READ_FEEDBACK)
            rows = await asyncio.to_thread(self._select, identity.tenant, dict(request.query_params))
        except NightschoolError as error:
            return refused(error)
        items = shown(rows, time.time())
        return JSONResponse({"feedback": items, "current": [item for item in items if item["current"]]})

    def _select(self, tenant: str, asked: dict[str, str]) -> Sequence[sa.Row]:
        named = [name for name in NAMED_BY if name in asked]
        narrowed = {name: _number(asked, name) for name in ("turn", "tool_call") if name in asked}
        if (
            set(asked) - {*named, *narrowed, "state"}
            or len(named) + ("state" in asked) != 1
            or (narrowed and not named)
        ):
            why = f"Ask by one of {', '.join(NAMED_BY)} (with turn, tool_call), or by state."
            raise InputError("Nothing was looked up.", why, "GET ?target=NAME")
        with self.store.read() as conn:
            if not named:
                return list_feedback(conn, tenant, asked["state"], time.time())
            rows = find_history(conn, tenant, self._stored_name(asked[named[0]]), named[0])
        return [row for row in rows if all(row._mapping[name] == value for name, value in narrowed.items())]

    def _stored_name(self, name: str) -> str:
        """What the store calls a target that is asked for by somebody's address."""
        return redactor(self.settings.privacy).name(name) or name


async def store_feedback(store: Store, given: NewFeedback, admin: bool, settings: FeedbackSettings) -> Receipt:
    """Store one item; returns after the commit. Raises: see `insert_feedback`."""
    item, parked_s = hidden(given, settings.privacy), settings.parked_s
    write = store.submit(lambda conn: insert_feedback(conn, store.tenant, item, admin, time.time(), parked_s))
    return await asyncio.shield(asyncio.wrap_future(write))  # a write is never cancelled half-way


def answer(receipt: Receipt) -> Response:
    reply = {
        "id": receipt.id,
        "state": receipt.state,
        "repeated": receipt.repeated,
        "exchange": receipt.exchange_id,
        "session": receipt.session_id,
    }
    return JSONResponse(reply, 202 if receipt.state == "parked" else 200)


def refused(error: NightschoolError) -> Response:
    refusal = as_refusal(error)
    if isinstance(error, KeyTakenError):
        refusal = RequestRefused(409, "idempotency_key_taken", error)
    headers = {name.decode(): value.decode() for name, value in refusal.headers}
    return JSONResponse(error_object(refusal), refusal.status, headers)


def parse_json(raw: bytes) -> Any:
    """Raises: InputError, also for NaN and infinities in whatever spelling."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InputError("The feedback was not taken.", f"Its body is not JSON: {error}.", "Correct it.") from error


def _number(asked: Json, name: str) -> int:
    text = str(asked[name])
    if not text.isascii() or not text.isdecimal() or len(text) > 6:
        raise InputError("Nothing was looked up.", f"{name} is a whole number.", "GET ?exchange=ID&tool_call=0")
    return int(text)
