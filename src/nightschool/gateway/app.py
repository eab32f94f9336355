"""The gateway as one ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Sequence

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from nightschool.access.middleware import SameSiteOnly
from nightschool.errors import NightschoolError
from nightschool.gateway.aliases import AliasTable
from nightschool.gateway.counting import PATH as COUNT_PATH
from nightschool.gateway.counting import TokenCounter
from nightschool.gateway.dialects.chat import CHAT
from nightschool.gateway.dialects.completions import COMPLETIONS
from nightschool.gateway.dialects.messages import MESSAGES
from nightschool.gateway.dialects.responses import RESPONSES
from nightschool.gateway.feedback_routes import FeedbackRoutes
from nightschool.gateway.incoming import MAY_CHAT, require
from nightschool.gateway.proxy import Proxy
from nightschool.gateway.recorder import Recorder
from nightschool.gateway.replies import as_refusal, error_object
from nightschool.gateway.settings import GatewaySettings
from nightschool.store.database import Store
from nightschool.upstream.client import EngineClient

DIALECTS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)


def build_app(
    store: Store, engine_client: EngineClient, settings: GatewaySettings, routes: Sequence[BaseRoute] = ()
) -> Starlette:
    """The gateway in front of one engine. `routes` come after its own, behind the same Host and Origin checks.

    When the application stops it stores what waits and closes `engine_client`; the store stays open. Later
    routes find `settings.access` as `app.state.access`, and the recorder as `app.state.recorder`.
    """
    recorder = Recorder(store, settings.max_queue_bytes)
    aliases = AliasTable(store, settings.agent, settings.upstream.any_model)
    proxy = Proxy(engine_client, aliases, recorder, settings)
    feedback = FeedbackRoutes(store, settings.access)

    async def health(_request: Request) -> Response:
        reachable = await engine_client.health(any_answer=settings.upstream.url is not None)
        recording = recorder.counts()
        healthy = reachable and not recording["lost"]
        return JSONResponse(
            {
                "status": "ok" if healthy else "degraded",
                "engine": "reachable" if reachable else "unreachable",
                "recording": recording,
                "refused": dict(proxy.refused),
            }
        )

    async def models(request: Request) -> Response:
        try:
            identity = require(request.scope, settings.access, MAY_CHAT)
            names = await aliases.scoped(identity.tenant).names()
        except NightschoolError as error:
            refusal = as_refusal(error)
            return JSONResponse(error_object(refusal), refusal.status)
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "nightschool"} for name in names]
        return JSONResponse({"object": "list", "data": data})

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        gc.freeze()  # what is imported by now lives on; without this, each full collection stops replies for 50 ms
        async with settings.access.watch():
            yield
        await asyncio.to_thread(recorder.close)
        await engine_client.close()

    app = Starlette(
        routes=[
            *(Route(dialect.path, proxy.route(dialect), methods=["POST"]) for dialect in DIALECTS),
            Route(COUNT_PATH, TokenCounter(proxy).post, methods=["POST"]),
            Route("/v1/feedback", feedback.post, methods=["POST"]),
            Route("/v1/feedback", feedback.get, methods=["GET"]),
            Route("/v1/models", models),
            Route("/health", health),
            *routes,
        ],
        middleware=[Middleware(SameSiteOnly, allowed=settings.allowed_hosts)],
        lifespan=lifespan,
    )
    app.state.access = settings.access
    app.state.recorder = recorder
    return app
