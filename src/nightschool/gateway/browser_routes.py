"""Feedback from web pages: POST /v1/feedback/tokens, with a key; POST /v1/feedback/browser, with such a token."""

from __future__ import annotations

import asyncio
import time

import sqlalchemy as sa
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from nightschool.access.identity import Access
from nightschool.errors import NightschoolError
from nightschool.feedback.browser import (
    Pass,
    check_count,
    judgement_of,
    make_signing_key,
    new_pass,
    read_judgement,
    read_token,
    sign,
)
from nightschool.feedback.private import hidden
from nightschool.feedback.record import Receipt, insert_feedback
from nightschool.feedback.settings import FeedbackSettings
from nightschool.feedback.values import NewFeedback
from nightschool.gateway.feedback_routes import answer, parse_json, refused
from nightschool.gateway.incoming import MAY_JUDGE, read_body, require
from nightschool.store.database import Store

BROWSER_PATH = "/v1/feedback/browser"
MAX_BODY_BYTES = 2**18
# The token in the body is the permission, no cookie is: any page may show the buttons.
CORS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "POST",
    "Access-Control-Allow-Headers": "Content-Type",
    "Access-Control-Max-Age": "600",
}


class BrowserRoutes:
    """Making tokens for pages, and taking what pages send."""

    def __init__(self, store: Store, access: Access, settings: FeedbackSettings) -> None:
        self.store = store
        self.access = access
        self.settings = settings

    async def mint(self, request: Request) -> Response:
        """A token for one exchange or session; needs a key."""
        try:
            identity = require(request.scope, self.access, MAY_JUDGE)
            raw = await read_body(request.scope, request.receive, MAX_BODY_BYTES)
            given = new_pass(parse_json(raw or b""), identity.tenant, time.time())
            key = await asyncio.to_thread(make_signing_key, self.store.scoped(given.tenant))
        except NightschoolError as error:
            return refused(error)
        return JSONResponse({"token": sign(given, key), "expires_at": given.expires_at})

    async def post(self, request: Request) -> Response:
        """A thumb or a text. Any origin may read the answer; the preflight of a JSON request is answered too."""
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=CORS)
        try:
            raw = await read_body(request.scope, request.receive, MAX_BODY_BYTES)
            token, kind, value = read_judgement(parse_json(raw or b""))
            given = await asyncio.to_thread(read_token, token, self.store, time.time())
            response = answer(await self._store(given, judgement_of(given, kind, value)))
        except NightschoolError as error:
            response = refused(error)
        response.headers.update(CORS)
        return response

    async def _store(self, given: Pass, said: NewFeedback) -> Receipt:
        item = hidden(said, self.settings.privacy)

        def write(conn: sa.Connection) -> Receipt:
            check_count(conn, given)
            return insert_feedback(conn, given.tenant, item, False, time.time(), self.settings.parked_s)

        return await asyncio.shield(asyncio.wrap_future(self.store.scoped(given.tenant).submit(write)))
