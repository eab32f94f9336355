"""Replies of the gateway's own making, in the shape every OpenAI client understands."""

from __future__ import annotations

import orjson
from starlette.types import Send

from nightschool.errors import InputError, MissingError, NightschoolError, RefusedError, StoreError, UpstreamError
from nightschool.types import Json

Headers = list[tuple[bytes, bytes]]


class RequestRefused(NightschoolError):
    """A request that the gateway answers itself, with an HTTP status and a code for programs."""

    def __init__(self, status: int, code: str, error: NightschoolError) -> None:
        super().__init__(error.what, error.why, error.next_step)
        self.status = status
        self.code = code
        self.headers: Headers = []

    @property
    def text_headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.headers}


def refuse(status: int, code: str, what: str, why: str, next_step: str) -> RequestRefused:
    """A refusal in three sentences."""
    return RequestRefused(status, code, NightschoolError(what, why, next_step))


def as_refusal(error: NightschoolError) -> RequestRefused:
    """The HTTP answer to an expected failure of any part below."""
    if isinstance(error, RequestRefused):
        return error
    for kind, status, code in (
        (InputError, 400, "invalid_request"),
        (RefusedError, 403, "refused"),
        (UpstreamError, 502, "engine_unavailable"),
        (MissingError, 502, "adapter_unavailable"),
        (StoreError, 503, "store_unavailable"),
    ):
        if isinstance(error, kind):
            return RequestRefused(status, code, error)
    return RequestRefused(502, "adapter_unavailable", error)


def error_object(error: RequestRefused) -> Json:
    """OpenAI's error object; what, why and next also stand alone, for programs that show them."""
    kind = "invalid_request_error" if error.status < 500 else "api_error"
    return {"error": {"message": str(error), "type": kind, "param": None, "code": error.code, **error.as_dict()}}


async def send_json(send: Send, status: int, value: Json, headers: Headers | None = None) -> None:
    await send_bytes(send, status, orjson.dumps(value), [(b"content-type", b"application/json"), *(headers or [])])


async def send_bytes(send: Send, status: int, body: bytes, headers: Headers) -> None:
    """A whole reply in one piece."""
    headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
