"""A server on a laptop is reachable from every page its owner visits; this keeps those pages out.

Host must be a name of ours (against DNS rebinding), and a request that a browser sends for another site
is refused whatever its method.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import orjson
from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})


class SameSiteOnly:
    """ASGI middleware: the Host allow-list and the Origin check. `allowed` adds names without port.

    Pages of any origin may use the paths in `open_to_pages`: their routes ask for what no other page can know.
    """

    def __init__(self, app: ASGIApp, allowed: tuple[str, ...] = (), open_to_pages: tuple[str, ...] = ()) -> None:
        self.app = app
        self.open_to_pages = frozenset(open_to_pages)
        self.names = LOOPBACK_NAMES | {name.lower() for name in allowed}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        reason = self.refusal(scope)
        if reason is None:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await _forbid(send, reason)

    def refusal(self, scope: Scope) -> str | None:
        """Why the request is refused, or `None`."""
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1:
            return "A request must name exactly one Host."
        host = hosts[0].decode("latin-1").lower()
        if _name(host) not in self.names:
            return "This Host is not one of ours. Add it to `allowed_hosts` below [gateway] in nightschool.toml."
        if scope.get("path") in self.open_to_pages:
            return None
        headers = dict(scope["headers"])
        origin = headers.get(b"origin")
        if origin is not None and not _same_origin(origin.decode("latin-1"), host):
            return "A page of another origin may not use this server."
        navigates = headers.get(b"sec-fetch-mode") == b"navigate" and scope.get("method") == "GET"
        if headers.get(b"sec-fetch-site") == b"cross-site" and not navigates:
            return "A page of another site may not use this server."
        return None


def _name(host: str) -> str:
    """`host` without its port; an IPv6 address keeps its brackets."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def _same_origin(origin: str, host: str) -> bool:
    parts = urlsplit(origin)
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host


async def _forbid(send: Send, reason: str) -> None:
    body = orjson.dumps({"error": {"message": reason, "type": "forbidden", "code": "forbidden"}})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body})
