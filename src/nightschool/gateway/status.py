"""GET /health and GET /v1/models."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from nightschool.errors import NightschoolError
from nightschool.gateway.incoming import MAY_CHAT, require
from nightschool.gateway.proxy import Proxy
from nightschool.gateway.replies import as_refusal, error_object


class StatusRoutes:
    """What a gateway says of itself."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy

    async def health(self, _request: Request) -> Response:
        """Engine, recording, refusals. A provider has no /health: any answer of it counts."""
        proxy = self.proxy
        reachable = await proxy.engine.health(any_answer=proxy.settings.upstream.url is not None)
        recording = proxy.recorder.counts()
        healthy = reachable and not recording["lost"]
        return JSONResponse(
            {
                "status": "ok" if healthy else "degraded",
                "engine": "reachable" if reachable else "unreachable",
                "recording": recording,
                "refused": dict(proxy.refused),
            }
        )

    async def models(self, request: Request) -> Response:
        """The agents that can be asked for."""
        try:
            identity = require(request.scope, self.proxy.settings.access, MAY_CHAT)
            names = await self.proxy.aliases.scoped(identity.tenant).names()
        except NightschoolError as error:
            refusal = as_refusal(error)
            return JSONResponse(error_object(refusal), refusal.status, refusal.text_headers)
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "nightschool"} for name in names]
        return JSONResponse({"object": "list", "data": data})
