"""Running the gateway's application under uvicorn."""

from __future__ import annotations

import uvicorn
from starlette.types import ASGIApp

from nightschool.access.tokens import refuse_public_bind

# Longer than clients keep an idle connection, so that the client closes it and never writes into a closed one.
KEEP_ALIVE_S = 75
SHUTDOWN_S = 10


def make_server(app: ASGIApp, host: str, port: int, needs_key: bool = False) -> uvicorn.Server:
    """A server that has not started (`serve`, `run`). `port` 0 takes a free one.

    Raises: RefusedError when `host` is public and agents need no key.
    """
    refuse_public_bind(host, needs_key)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        access_log=False,  # it would repeat query strings
        log_level="warning",
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_S,
        proxy_headers=False,  # nobody on this machine may pass for somebody else
        server_header=False,
    )
    return uvicorn.Server(config)
