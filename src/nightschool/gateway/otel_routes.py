"""POST /v1/logs: evaluation events from any OpenTelemetry exporter, as OTLP over HTTP."""

from __future__ import annotations

import asyncio
import time
import zlib
from dataclasses import replace

import sqlalchemy as sa
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from nightschool.access.identity import Access
from nightschool.access.keys import Role
from nightschool.errors import MissingError, NightschoolError
from nightschool.feedback.otel import Evaluations, read_evaluations
from nightschool.feedback.private import hidden
from nightschool.feedback.protobuf import read_logs, write_reply
from nightschool.feedback.record import insert_feedback
from nightschool.feedback.settings import FeedbackSettings
from nightschool.gateway.feedback_routes import parse_json, refused
from nightschool.gateway.incoming import MAY_JUDGE, read_body, require
from nightschool.gateway.replies import RequestRefused, refuse
from nightschool.store.database import Store
from nightschool.types import Json

MAX_LOG_BYTES = 8 * 2**20
PROTOBUF = "application/x-protobuf"
REASONS_TOLD = 3


class OtelRoutes:
    """Taking log records. What is no evaluation is passed over in silence, as collectors send everything."""

    def __init__(self, store: Store, access: Access, settings: FeedbackSettings) -> None:
        self.store = store
        self.access = access
        self.settings = settings

    async def post(self, request: Request) -> Response:
        """200 after the commit; `partialSuccess` says how many evaluations were refused, and why."""
        try:
            identity = require(request.scope, self.access, MAY_JUDGE)
            raw = await read_body(request.scope, request.receive, MAX_LOG_BYTES) or b""
            if request.headers.get("content-encoding", "identity") == "gzip":
                raw = _unpacked(raw)
            is_protobuf = request.headers.get("content-type", "").startswith(PROTOBUF)
            found = read_evaluations(_from_protobuf(raw) if is_protobuf else parse_json(raw))
            store, admin = self.store.scoped(identity.tenant), identity.role == Role.ADMIN
            why = list(found.refused) + await self._store(store, found, identity.key_id, admin)
        except NightschoolError as error:
            return refused(error)
        told = "; ".join(dict.fromkeys(why[:REASONS_TOLD]))
        reply = {"partialSuccess": {"rejectedLogRecords": len(why), "errorMessage": told}} if why else {}
        return Response(write_reply(reply), media_type=PROTOBUF) if is_protobuf else JSONResponse(reply)

    async def _store(self, store: Store, found: Evaluations, key_id: str | None, admin: bool) -> list[str]:
        """Store the items in one write; why some were refused."""

        def write(conn: sa.Connection) -> list[str]:
            why = []
            for item in found.items:
                try:
                    item = hidden(replace(item, key_id=key_id), self.settings.privacy)
                    insert_feedback(conn, store.tenant, item, admin, time.time(), self.settings.parked_s)
                except NightschoolError as error:
                    why.append(error.why)
            return why

        return await asyncio.shield(asyncio.wrap_future(store.submit(write)))


def _unpacked(raw: bytes) -> bytes:
    """Raises: RequestRefused for what is no gzip, or unpacks to more than a body may hold."""
    try:
        stream = zlib.decompressobj(31)
        plain = stream.decompress(raw, MAX_LOG_BYTES)
    except zlib.error as error:
        raise refuse(400, "invalid_request", "The logs were not taken.", f"{error}.", "Send gzip or plain.") from error
    if stream.unconsumed_tail or not stream.eof:
        why = f"It is cut off, or unpacks to more than {MAX_LOG_BYTES} bytes."
        raise refuse(413, "body_too_large", "The logs were not taken.", why, "Send smaller batches.")
    return plain


def _from_protobuf(raw: bytes) -> Json:
    try:
        return read_logs(raw)
    except MissingError as error:
        raise RequestRefused(415, "protobuf_unsupported", error) from error
