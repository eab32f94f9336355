"""Whatever else a provider serves below /v1: passed through, and not recorded."""

from __future__ import annotations

from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from nightschool.errors import NightschoolError
from nightschool.gateway.forwarding import forwarded, passed, upstream_path
from nightschool.gateway.incoming import MAY_CHAT, read_body, require
from nightschool.gateway.proxy import Proxy
from nightschool.gateway.replies import as_refusal, error_object, send_json

METHODS = ("GET", "POST", "DELETE")


def routes_to_provider(proxy: Proxy) -> list[BaseRoute]:
    """To come after the routes that the gateway answers itself."""
    return [Route("/v1/{rest:path}", OtherCalls(proxy), methods=METHODS)]


class OtherCalls:
    """Embeddings, files, lists of models: an agent that swapped one address misses nothing."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        settings = self.proxy.settings
        started = False
        try:
            require(scope, settings.access, MAY_CHAT)
            body = await read_body(scope, receive, settings.max_body_bytes)
            if body is None:  # the client left before it had asked
                return
            path = upstream_path(scope["raw_path"].decode("latin-1"), scope, settings.upstream)
            headers = forwarded(scope, settings.upstream, settings.access.is_ours)
            with await self.proxy.engine.request(scope["method"], path, body or None, headers) as answer:
                await send({"type": "http.response.start", "status": answer.status, "headers": passed(answer)})
                started = True
                while chunk := await answer.some():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        except NightschoolError as error:
            refusal = as_refusal(error)
            if not started:
                await send_json(send, refusal.status, error_object(refusal), refusal.headers)
