"""POST /v1/chat/completions: forwards bytes, and parses a copy.

An ASGI application of its own: a reply's path is short, and the client's leaving is seen while the engine
still works.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass

import orjson
from starlette.types import Receive, Scope, Send

from nightschool.errors import NightschoolError
from nightschool.gateway.aliases import AliasTable, Route
from nightschool.gateway.capture import Capture, Stopwatch
from nightschool.gateway.dialects.chat_reply import EventSplitter, hide_in_event, hide_in_reply
from nightschool.gateway.dialects.chat_request import ChatRequest, Hidden, read_request
from nightschool.gateway.incoming import read_body, read_caller, require_use, text_headers, wait_until_gone
from nightschool.gateway.policies import Lease, PolicyPool
from nightschool.gateway.recorder import Recorder
from nightschool.gateway.replies import Headers, as_refusal, error_object, refuse, send_bytes, send_json
from nightschool.gateway.settings import GatewaySettings
from nightschool.store.ids import new_id
from nightschool.upstream.client import Answer, EngineClient

# Headers of the engine's reply that describe its connection or its server, not the reply.
NOT_PASSED = frozenset(
    {
        "connection",
        "content-length",
        "date",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "server",
        "set-cookie",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Turn:
    """One exchange on its way through: what it asked, what is recorded, and how far the reply has come."""

    request: ChatRequest
    capture: Capture
    send: Send
    started: bool = False
    finished: bool = False

    def headers(self) -> Headers:
        """The gateway's headers, and with them the moment of the first byte."""
        overhead_ms = self.capture.watch.mark_first_byte()
        return gateway_headers(self.capture.id, self.capture.policy, overhead_ms)


def gateway_headers(exchange_id: str, policy: str, overhead_ms: float) -> Headers:
    return [
        (b"x-nightschool-exchange", exchange_id.encode()),
        (b"x-nightschool-policy", policy.encode()),
        (b"x-nightschool-overhead-ms", f"{overhead_ms:.3f}".encode()),
    ]


class ChatCompletions:
    """The route. `refused` counts, by HTTP status, the requests that never reached an engine."""

    def __init__(self, engine: EngineClient, aliases: AliasTable, recorder: Recorder, settings: GatewaySettings):
        self.engine = engine
        self.aliases = aliases
        self.recorder = recorder
        self.settings = settings
        self.policies = PolicyPool(engine, settings.state / "adapters", settings.max_adapters, settings.base_model)
        self.refused: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange_id = new_id()
        watch = Stopwatch()
        try:
            role = require_use(scope, self.settings.access)
            raw = await read_body(scope, receive, self.settings.max_body_bytes)
            if raw is None:  # the client left before it had asked
                return
            watch = Stopwatch()
            request = read_request(raw, self.settings.wants_tokens)
            headers = text_headers(scope)
            route = await self.aliases.resolve(request.model, role, headers.get("x-nightschool-exam"))
            caller = read_caller(headers, request.fields, route, self.settings.training_allowed)
        except NightschoolError as error:
            refusal = as_refusal(error)
            self.refused[str(refusal.status)] += 1
            log.warning("Request %s refused (%d %s).", exchange_id, refusal.status, refusal.code)
            overhead_ms = watch.mark_first_byte()
            await send_json(
                send, refusal.status, error_object(refusal), gateway_headers(exchange_id, "none", overhead_ms)
            )
            return
        asked = self.settings.wants_tokens or bool(request.fields.get("return_token_ids"))
        capture = Capture(exchange_id, caller, raw, request.fields, watch, asked, route.policy)
        await self._serve(Turn(request, capture, send), route, receive)

    async def _serve(self, turn: Turn, route: Route, receive: Receive) -> None:
        """Answer, unless the client leaves first; then the engine is told at once. Both are recorded."""
        capture = turn.capture
        work = asyncio.create_task(self._answer(turn, route))
        gone = asyncio.create_task(wait_until_gone(receive))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and not turn.finished:
                work.cancel()
            await asyncio.wait((work,))
            if work.cancelled():
                capture.status, capture.failure = "aborted", "The client left before the reply was complete."
            else:
                work.result()
        except asyncio.CancelledError:  # the server stops
            work.cancel()
            capture.status, capture.failure = "aborted", "The gateway stopped before the reply was complete."
            raise
        finally:
            gone.cancel()
            self.recorder.submit(capture)

    async def _answer(self, turn: Turn, route: Route) -> None:
        capture = turn.capture
        try:
            async with AsyncExitStack() as stack:
                with capture.watch.waiting():
                    lease, answer = await self._ask(stack, turn.request, route.policy)
                capture.http_status = answer.status
                capture.is_stream = answer.content_type == "text/event-stream"
                hidden = turn.request.hidden(lease.model) if answer.status < 400 else Hidden()
                if capture.is_stream:
                    await self._copy_stream(turn, answer, hidden)
                else:
                    await self._copy_plain(turn, answer, hidden)
        except NightschoolError as error:
            await self._fail(turn, error)
        except Exception as error:  # boundary: a fault of ours must not leave the client without an answer
            log.exception("Exchange %s failed in the gateway.", capture.id)
            fault = "The gateway failed.", f"{type(error).__name__} inside it.", "See its log under the exchange's id."
            await self._fail(turn, refuse(500, "gateway_fault", *fault))

    async def _ask(self, stack: AsyncExitStack, request: ChatRequest, policy: str) -> tuple[Lease, Answer]:
        """The engine's answer. An engine that does not know the policy (it restarted) gets it loaded once more."""
        lease = await stack.enter_async_context(self.policies.hold(policy))
        answer = await stack.enter_async_context(self.engine.chat(request.for_engine(lease.model)))
        if answer.status == 404:
            lease = await self.policies.renew(lease)
            answer = await stack.enter_async_context(self.engine.chat(request.for_engine(lease.model)))
        return lease, answer

    async def _copy_plain(self, turn: Turn, answer: Answer, hidden: Hidden) -> None:
        with turn.capture.watch.waiting():
            raw = await answer.read()
        turn.capture.reply.append(raw)
        body = hide_in_reply(raw, hidden)
        headers = _passed(answer) + turn.headers()
        turn.started = turn.finished = True
        await send_bytes(turn.send, answer.status, body, headers)

    async def _copy_stream(self, turn: Turn, answer: Answer, hidden: Hidden) -> None:
        """Event by event, as they come; what waits here is never more than one unfinished event."""
        splitter = EventSplitter()
        while True:
            with turn.capture.watch.waiting():
                chunk = await answer.some()
            turn.capture.reply.append(chunk)
            events = splitter.feed(chunk) if chunk else [splitter.rest]
            body = b"".join(hide_in_event(event, hidden) for event in events)
            if not turn.started and (body or not chunk):
                await self._start(turn, answer.status, _passed(answer))
            turn.finished = not chunk
            if body or not chunk:
                await turn.send({"type": "http.response.body", "body": body, "more_body": bool(chunk)})
            if not chunk:
                return

    async def _start(self, turn: Turn, status: int, headers: Headers) -> None:
        turn.started = True
        await turn.send({"type": "http.response.start", "status": status, "headers": headers + turn.headers()})

    async def _fail(self, turn: Turn, error: NightschoolError) -> None:
        """Tell the client: as a reply, or inside a stream that has begun. The exchange is an error."""
        refusal = as_refusal(error)
        capture = turn.capture
        capture.status, capture.failure = "error", str(error)
        capture.http_status = capture.http_status if turn.started else None
        if turn.finished:
            return
        value = error_object(refusal)
        if turn.started:
            event = b"data: " + orjson.dumps(value) + b"\n\n"
            turn.finished = True
            await turn.send({"type": "http.response.body", "body": event})
        else:
            turn.started = turn.finished = True
            await send_json(turn.send, refusal.status, value, turn.headers())


def _passed(answer: Answer) -> Headers:
    return [
        (name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers if name not in NOT_PASSED
    ]
