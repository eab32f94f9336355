"""A provider that answers any path with the bytes a test gives it, and keeps what it was sent."""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


@dataclass
class FakeProvider:
    reply: bytes = b"{}"
    status: int = 200
    paths: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/{path:path}", self.answer, methods=["GET", "POST"])])

    async def answer(self, request: Request) -> Response:
        body = await request.body()
        self.paths.append(request.url.path + (f"?{request.url.query}" if request.url.query else ""))
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        kind = "text/event-stream" if b'"stream": true' in body else "application/json"
        return Response(self.reply, self.status, {"x-request-id": "req-7"}, kind)
