"""GET /openapi.json: what the gateway's own routes take and give, for tools that read OpenAPI.

The dialects are listed without their wire formats, which are described by those who made them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from nightschool import __version__
from nightschool.feedback.body import FeedbackBody
from nightschool.feedback.browser import BrowserBody, PassBody
from nightschool.types import Json

ERROR_STATUSES = {
    400: "The request is wrong; the error says what, why and what to do.",
    401: "It shows no key that is known here.",
    403: "The key, the host or the page may not.",
    404: "There is nothing by that name.",
    409: "The idempotency key, or the delivery's id, belongs to other content.",
    413: "The body is too large.",
    415: "The body is of a kind that is not read here.",
    429: "The key asks too often; Retry-After says when to come back.",
    502: "The engine cannot be reached.",
    503: "The store cannot be reached, or takes no more.",
}
TEXT = {"type": "string"}
ANYTHING: Json = {}
RECEIPT = {
    "type": "object",
    "required": ["id", "state", "repeated", "exchange", "session"],
    "properties": {
        "id": TEXT,
        "state": {"enum": ["matched", "parked", "expired", "refused"]},
        "repeated": {"type": "boolean"},
        "exchange": {"type": ["string", "null"]},
        "session": {"type": ["string", "null"]},
    },
}
TOLD = ("target", "exchange", "session", "external_key", "turn", "tool_call", "state")


async def show_openapi(_request: Request) -> Response:
    """The description; it names no key, no agent and no data, so anybody may read it."""
    return JSONResponse(describe())


def describe() -> Json:
    """The OpenAPI document of the gateway's own routes."""
    body, asked, from_page = (kind.model_json_schema() for kind in (FeedbackBody, PassBody, BrowserBody))
    token = _object(("token", "expires_at"), token=TEXT, expires_at={"type": "number"})
    models = _object(("object", "data"), object={"const": "list"}, data={"type": "array"})
    health = _object(("status", "engine", "recording", "refused"), status={"enum": ["ok", "degraded"]})
    shown = _object(("feedback", "current"), feedback={"type": "array"}, current={"type": "array"})
    receipts = {200: RECEIPT, 202: RECEIPT}
    by_query = [{"name": name, "in": "query", "schema": TEXT} for name in TOLD]
    by_name = [{"name": "name", "in": "path", "required": True, "schema": TEXT}]
    paths: Json = {
        f"/v1/{name}": {"post": _operation(f"One model call, as {name} of its API.", {200: ANYTHING}, ANYTHING)}
        for name in ("chat/completions", "completions", "responses", "messages", "messages/count_tokens")
    }
    paths |= {
        "/v1/feedback": {
            "post": _operation("Judge an exchange, a turn, a tool call or a session.", receipts, body),
            "get": _operation("The history of a target, and what holds now.", {200: shown}, parameters=by_query),
        },
        "/v1/feedback/tokens": {"post": _operation("A token with which a page may judge.", {200: token}, asked)},
        "/v1/feedback/browser": {
            "post": _operation("A judgement from a page, by its token.", receipts, from_page),
            "options": _operation("Whether a page may ask.", {204: None}),
        },
        "/v1/webhooks/{name}": {
            "post": _operation(
                "A signed delivery of another system.", {200: ANYTHING, 202: ANYTHING}, ANYTHING, by_name
            )
        },
        "/v1/logs": {"post": _operation("OpenTelemetry log records with evaluations.", {200: ANYTHING}, ANYTHING)},
        "/v1/models": {"get": _operation("The agents that can be asked for.", {200: models})},
        "/health": {"get": _operation("Engine, recording and refusals.", {200: health})},
        "/openapi.json": {"get": _operation("This description.", {200: ANYTHING})},
    }
    info = {"title": "Nightschool gateway", "version": __version__}
    security = {"key": {"type": "http", "scheme": "bearer"}}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"securitySchemes": security}}


def _operation(
    summary: str, replies: Mapping[int, Json | None], body: Json | None = None, parameters: list[Json] | None = None
) -> Json:
    """One method of one path. `replies` are by status; a body of `None` means there is none."""
    error = _object(("error",), error=_object(("message", "type", "code"), message=TEXT))
    told: Json = {str(status): {"description": text, **_json(error)} for status, text in ERROR_STATUSES.items()}
    told |= {str(status): {"description": "Done.", **_json(schema)} for status, schema in replies.items()}
    operation: Json = {"summary": summary, "responses": told, "security": [{}, {"key": []}]}
    if body is not None:
        operation["requestBody"] = {"required": True, **_json(body)}
    return operation | ({"parameters": parameters} if parameters else {})


def _object(required: tuple[str, ...], **properties: Any) -> Json:
    return {"type": "object", "required": list(required), "properties": properties}


def _json(schema: Json | None) -> Json:
    return {} if schema is None else {"content": {"application/json": {"schema": schema}}}
