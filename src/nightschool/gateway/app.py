"""The gateway as one ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from collections.abc import AsyncIterator, Sequence

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Route

from nightschool.access.middleware import SameSiteOnly
from nightschool.gateway.aliases import AliasTable
from nightschool.gateway.counting import PATH as COUNT_PATH
from nightschool.gateway.counting import TokenCounter
from nightschool.gateway.dialects.chat import CHAT
from nightschool.gateway.dialects.completions import COMPLETIONS
from nightschool.gateway.dialects.messages import MESSAGES
from nightschool.gateway.dialects.responses import RESPONSES
from nightschool.gateway.fidelity import Grader
from nightschool.gateway.hearing import OPEN_TO_PAGES, feedback_routes
from nightschool.gateway.openapi import show_openapi
from nightschool.gateway.other_calls import routes_to_provider
from nightschool.gateway.proxy import ModelCalls, Proxy
from nightschool.gateway.recorder import Recorder
from nightschool.gateway.settings import GatewaySettings
from nightschool.gateway.status import StatusRoutes
from nightschool.store.database import Store
from nightschool.upstream.client import EngineClient

# How long the thread that records may go on while a request waits for the interpreter; Python's default is 5 ms.
SWITCH_S = 0.0005
# Python's default of 700 looks through what a batch of exchanges still holds many times while it is derived and stored.
YOUNG_OBJECTS = 10_000
DIALECTS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)


def build_app(
    store: Store, engine_client: EngineClient, settings: GatewaySettings, routes: Sequence[BaseRoute] = ()
) -> Starlette:
    """The gateway in front of one engine. `routes` come after its own, behind the same Host and Origin checks.

    When the application stops it stores what waits and closes `engine_client`; the store stays open. Later
    routes find `settings.access` as `app.state.access`, and the recorder as `app.state.recorder`.
    """
    grader = Grader(settings.tokenizer, encodes=not settings.upstream.gives_tokens)
    recorder = Recorder(store, settings.max_queue_bytes, settings.durability, settings.privacy, grader)
    aliases = AliasTable(store, settings.agent, settings.upstream.any_model)
    proxy = Proxy(engine_client, aliases, recorder, settings)
    status = StatusRoutes(proxy)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        sys.setswitchinterval(SWITCH_S)
        gc.freeze()  # what is imported by now lives on; without this, each full collection stops replies for 50 ms
        gc.set_threshold(YOUNG_OBJECTS)
        async with settings.access.watch():
            yield
        await asyncio.to_thread(recorder.close)
        await engine_client.close()

    calls = {dialect.path: proxy.route(dialect) for dialect in DIALECTS}
    same_site = Middleware(SameSiteOnly, allowed=settings.allowed_hosts, open_to_pages=OPEN_TO_PAGES)
    app = Starlette(
        routes=[
            *(Route(path, call, methods=["POST"]) for path, call in calls.items()),
            Route(COUNT_PATH, TokenCounter(proxy).post, methods=["POST"]),
            *feedback_routes(store, settings),
            Route("/health", status.health),
            Route("/openapi.json", show_openapi),
            *(routes_to_provider(proxy) if settings.upstream.any_model else [Route("/v1/models", status.models)]),
            *routes,
        ],
        middleware=[same_site, Middleware(ModelCalls, routes=calls)],
        lifespan=lifespan,
    )
    app.state.access = settings.access
    app.state.recorder = recorder
    return app
