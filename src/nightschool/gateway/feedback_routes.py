"""POST and GET /v1/feedback."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import orjson
import sqlalchemy as sa
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from nightschool.access.identity import Access
from nightschool.access.keys import Role
from nightschool.errors import InputError, NightschoolError
from nightschool.feedback.body import read_feedback
from nightschool.feedback.record import KeyTakenError, current_view, feedback_value, insert_feedback
from nightschool.gateway.incoming import MAY_JUDGE, MAY_READ_FEEDBACK, read_body, require
from nightschool.gateway.replies import RequestRefused, as_refusal, error_object
from nightschool.store.database import Store
from nightschool.store.exchanges import find_exchange, find_session
from nightschool.store.schema import feedback as table
from nightschool.types import Json

MAX_FEEDBACK_BYTES = 2**20
MAX_ROWS = 1000
STATES = ("matched", "parked", "refused")


class FeedbackRoutes:
    """Taking feedback and showing it."""

    def __init__(self, store: Store, access: Access) -> None:
        self.store = store
        self.access = access

    async def post(self, request: Request) -> Response:
        """Answers after the commit: 200 matched, 202 parked, 409 for a key that belongs to other feedback."""
        try:
            identity = require(request.scope, self.access, MAY_JUDGE)
            raw = await read_body(request.scope, request.receive, MAX_FEEDBACK_BYTES)
            now = time.time()
            item = read_feedback(_parse(raw or b""), now)
            admin, tenant = identity.role == Role.ADMIN, identity.tenant
            write = self.store.scoped(tenant).submit(lambda conn: insert_feedback(conn, tenant, item, admin, now))
            receipt = await asyncio.shield(asyncio.wrap_future(write))  # a write is never cancelled half-way
        except KeyTakenError as error:
            return _refused(RequestRefused(409, "idempotency_key_taken", error))
        except NightschoolError as error:
            return _refused(as_refusal(error))
        reply = {
            "id": receipt.id,
            "state": receipt.state,
            "repeated": receipt.repeated,
            "exchange": receipt.exchange_id,
            "session": receipt.session_id,
        }
        return JSONResponse(reply, 202 if receipt.state == "parked" else 200)

    async def get(self, request: Request) -> Response:
        """The feedback on `exchange` or `session`, or in `state`, oldest first; `current` marks what holds now."""
        try:
            identity = require(request.scope, self.access, MAY_READ_FEEDBACK)
            rows = await asyncio.to_thread(self._select, identity.tenant, dict(request.query_params))
        except NightschoolError as error:
            return _refused(as_refusal(error))
        holding = {item.id for item in current_view(map(feedback_value, rows))}
        return JSONResponse({"feedback": [_show(row, row.id in holding) for row in rows]})

    def _select(self, tenant: str, asked: dict[str, str]) -> list[Any]:
        unknown = set(asked) - {"exchange", "session", "state"}
        if unknown or not asked:
            raise InputError("Nothing was looked up.", "Ask by exchange, session or state.", "GET ?state=parked")
        if asked.get("state", "parked") not in STATES:
            raise InputError("Nothing was looked up.", f"A state is one of {', '.join(STATES)}.", "GET ?state=parked")
        query = sa.select(table).where(table.c.tenant == tenant)
        with self.store.read() as conn:
            if "state" in asked:
                query = query.where(table.c.state == asked["state"])
            if "exchange" in asked:
                found = find_exchange(conn, tenant, asked["exchange"])
                named = sa.and_(table.c.target_id == asked["exchange"], table.c.target_kind != "session")
                query = query.where(sa.or_(table.c.exchange_id == found, named) if found else named)
            if "session" in asked:
                found = find_session(conn, tenant, asked["session"])
                named = sa.and_(table.c.target_id == asked["session"], table.c.target_kind == "session")
                query = query.where(sa.or_(table.c.session_id == found, named) if found else named)
            rows = conn.execute(query.order_by(table.c.received_at.desc(), table.c.id.desc()).limit(MAX_ROWS)).all()
        return list(reversed(rows))


def _parse(raw: bytes) -> Any:
    try:
        return orjson.loads(raw)  # refuses NaN and infinities, in whatever spelling
    except orjson.JSONDecodeError as error:
        raise InputError("The feedback was not taken.", f"Its body is not JSON: {error}.", "Correct it.") from error


def _show(row: Any, is_current: bool) -> Json:
    value = {key: item for key, item in row._mapping.items() if key not in ("tenant", "idempotency_key")}
    return {**value, "current": is_current and row.state != "refused"}


def _refused(refusal: RequestRefused) -> Response:
    headers = {name.decode(): value.decode() for name, value in refusal.headers}
    return JSONResponse(error_object(refusal), refusal.status, headers)
