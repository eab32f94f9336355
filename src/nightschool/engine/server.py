"""Routes of the engine contract."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from nightschool.access.middleware import SameSiteOnly
from nightschool.engine.chat import Chat, Completion, encode, event_line, render
from nightschool.engine.protocol import AdapterBody, ChatBody, CompletionBody, TokenizeBody, error_json, parse
from nightschool.engine.service import Engine
from nightschool.errors import AdapterError, BusyError, InputError, MissingError, NightschoolError
from nightschool.types import Json

Handler = Callable[[Request], Awaitable[Response]]
STATUS = {InputError: 400, AdapterError: 400, MissingError: 404, BusyError: 409}


def build_app(engine: Engine, allowed_hosts: tuple[str, ...] = ()) -> Starlette:
    """The engine as an ASGI app; its lifespan starts and stops the network's thread."""

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        engine.start()
        try:
            yield
        finally:
            engine.stop()

    def guarded(handler: Callable[[Engine, Request], Awaitable[Response]]) -> Handler:
        async def run(request: Request) -> Response:
            if not _has_key(request, engine.settings.key):
                return _error(401, "invalid_api_key", "The engine's key is missing or wrong. Send it as Bearer token.")
            try:
                return await handler(engine, request)
            except TooLarge:
                limit = engine.settings.max_body_bytes
                return _error(413, "request_too_large", f"The body is larger than {limit} bytes. Send less.")
            except ClientDisconnect:
                return Response(status_code=499)
            except NightschoolError as error:
                status = next((code for kind, code in STATUS.items() if isinstance(error, kind)), 500)
                return _error(status, type(error).__name__, str(error))

        return run

    routes = [
        Route("/v1/chat/completions", guarded(chat_completions), methods=["POST"]),
        Route("/v1/completions", guarded(completions), methods=["POST"]),
        Route("/v1/load_lora_adapter", guarded(load_adapter), methods=["POST"]),
        Route("/v1/unload_lora_adapter", guarded(unload_adapter), methods=["POST"]),
        Route("/v1/models", guarded(models), methods=["GET"]),
        Route("/tokenize", guarded(tokenize), methods=["POST"]),
        Route("/health", guarded(health), methods=["GET"]),
    ]
    handlers: dict[Any, Any] = {404: _not_found, 405: _not_found, Exception: _broken}
    site = [Middleware(SameSiteOnly, allowed=allowed_hosts)]
    return Starlette(routes=routes, lifespan=lifespan, middleware=site, exception_handlers=handlers)


async def chat_completions(engine: Engine, request: Request) -> Response:
    return await _answer(request, Chat(engine, parse(ChatBody, await _body(engine, request))))


async def completions(engine: Engine, request: Request) -> Response:
    return await _answer(request, Completion(engine, parse(CompletionBody, await _body(engine, request))))


async def load_adapter(engine: Engine, request: Request) -> Response:
    body = parse(AdapterBody, await _body(engine, request))
    await engine.adapters.load(body.lora_name, body.lora_path)
    return _json({"status": "ok", "lora_name": body.lora_name})


async def unload_adapter(engine: Engine, request: Request) -> Response:
    body = parse(AdapterBody, await _body(engine, request))
    engine.adapters.unload(body.lora_name)
    return _json({"status": "ok", "lora_name": body.lora_name})


async def models(engine: Engine, _request: Request) -> Response:
    base = engine.base.name
    card = {"object": "model", "created": engine.started_at, "owned_by": "nightschool"}
    cards: list[Json] = [{"id": base, **card, "root": base, "parent": None, "max_model_len": engine.capacity}]
    cards += [{"id": name, **card, "root": name, "parent": base} for name in engine.adapters.loaded]
    return _json({"object": "list", "data": cards})


async def tokenize(engine: Engine, request: Request) -> Response:
    body = parse(TokenizeBody, await _body(engine, request))
    renderer = engine.base.renderer
    if body.messages is not None:
        ids = render(renderer, tuple(body.messages), tuple(body.tools or ()))
        if not body.add_generation_prompt:
            ids = ids[: -len(renderer.prompt_ids(()))]  # of no messages, only the reply's head remains
    elif body.prompt is not None:
        ids = encode(engine, body.prompt)
    else:
        raise InputError("There is nothing to tokenize.", "Neither messages nor prompt was sent.", "Send one of them.")
    return _json({"tokens": ids, "count": len(ids), "max_model_len": engine.capacity})


async def health(engine: Engine, _request: Request) -> Response:
    return _json(engine.health())


async def _answer(request: Request, asked: Chat | Completion) -> Response:
    """The whole reply or a stream; a client that goes away takes its request out of the batch."""
    if asked.body.stream:
        return StreamingResponse(_stream(asked), media_type="text/event-stream")
    reply = asyncio.ensure_future(asked.reply())
    gone = asyncio.ensure_future(_until_gone(request))
    try:
        await asyncio.wait({reply, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not reply.done():
            raise ClientDisconnect
        return _json(reply.result())
    finally:
        reply.cancel()
        gone.cancel()
        await asyncio.gather(reply, gone, return_exceptions=True)


async def _stream(asked: Chat | Completion) -> AsyncIterator[bytes]:
    chunks = asked.chunks()
    try:
        async for chunk in chunks:
            yield event_line(chunk)
        yield b"data: [DONE]\n\n"
    except NightschoolError as error:  # the status line is gone: the error travels as an event
        yield event_line(error_json(str(error), type(error).__name__, 500))
    finally:
        await chunks.aclose()


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class TooLarge(Exception):
    """The body exceeds the limit."""


async def _body(engine: Engine, request: Request) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > engine.settings.max_body_bytes:
            raise TooLarge
        parts.append(part)
    return b"".join(parts)


def _has_key(request: Request, key: str | None) -> bool:
    given = request.headers.get("authorization", "").encode()
    return key is None or hmac.compare_digest(given, f"Bearer {key}".encode())


def _json(content: Json, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


def _error(status: int, kind: str, message: str) -> Response:
    return _json(error_json(message, kind, status), status)


async def _not_found(request: Request, error: Any) -> Response:
    return _error(error.status_code, "not_found", f"The engine has no {request.method} {request.url.path}.")


async def _broken(_request: Request, error: Exception) -> Response:
    return _error(500, "internal_error", f"The engine failed: {type(error).__name__}. See its log.")
