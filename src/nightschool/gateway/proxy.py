"""Model calls in every dialect: forwards bytes, and parses a copy.

Each route is an ASGI application of its own: a reply's path is short, and the client's leaving is seen while
the engine still works.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from starlette.types import ASGIApp, Receive, Scope, Send

from nightschool.errors import NightschoolError, UpstreamError
from nightschool.feedback.polling import is_polled
from nightschool.gateway.aliases import AliasTable, Route
from nightschool.gateway.capture import Capture, Stopwatch
from nightschool.gateway.dialects.dialect import ClientRequest, Dialect, SafeReading, read_request
from nightschool.gateway.dialects.passage import Passage, choose_passage
from nightschool.gateway.dialects.sse import EventSplitter
from nightschool.gateway.forwarding import forwarded, passed, upstream_path
from nightschool.gateway.history import earlier_messages
from nightschool.gateway.incoming import MAY_CHAT, header, read_body, read_caller, require, wait_until_gone
from nightschool.gateway.policies import PolicyPool
from nightschool.gateway.recorder import Recorder
from nightschool.gateway.replies import Headers, as_refusal, refuse, send_bytes, send_json
from nightschool.gateway.settings import GatewaySettings
from nightschool.store.failpoints import fail_point
from nightschool.store.ids import new_id
from nightschool.types import Json
from nightschool.upstream.client import EngineClient
from nightschool.upstream.connections import Answer

KEEP_S = 5.0  # how long a reply waits for a stuck store

# In the event by which each dialect tells that a reply is complete.
LAST_MARKS = (
    b"[DONE]",
    b'"message_stop"',
    b'"response.completed"',
    b'"response.incomplete"',
    b'"response.failed"',
)

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Turn:
    """One exchange on its way through: how it is asked, what is recorded, and how far the reply has come."""

    passage: Passage
    capture: Capture
    send: Send
    path: str
    forwarded: dict[str, str]
    reading: SafeReading | None = None
    kept: bool = False
    left: bool = False
    started: bool = False
    finished: bool = False

    def headers(self) -> Headers:
        """The gateway's headers, and with them the moment of the first byte."""
        overhead_ms = self.capture.watch.mark_first_byte()
        told = gateway_headers(self.capture.id, self.capture.policy, overhead_ms)
        return [*told, (b"x-nightschool-poll", b"1")] if self.capture.polled else told


def gateway_headers(exchange_id: str, policy: str, overhead_ms: float) -> Headers:
    return [
        (b"x-nightschool-exchange", exchange_id.encode()),
        (b"x-nightschool-policy", policy.encode()),
        (b"x-nightschool-overhead-ms", f"{overhead_ms:.3f}".encode()),
    ]


class Proxy:
    """The model calls of one gateway. `refused` counts, by HTTP status, the requests that never reached an engine."""

    def __init__(self, engine: EngineClient, aliases: AliasTable, recorder: Recorder, settings: GatewaySettings):
        self.engine = engine
        self.aliases = aliases
        self.recorder = recorder
        self.settings = settings
        self.policies = PolicyPool(engine, settings.state / "adapters", settings.max_adapters, settings.base_model)
        self.keeps_first = settings.durability == "before_reply"
        self.refused: Counter[str] = Counter()

    def route(self, dialect: Dialect) -> ASGIApp:
        """The application that answers calls in one dialect."""
        return DialectRoute(self, dialect)

    async def call(self, dialect: Dialect, scope: Scope, receive: Receive, send: Send) -> None:
        exchange_id = new_id()
        watch = Stopwatch()
        try:
            identity = require(scope, self.settings.access, MAY_CHAT)
            raw = await read_body(scope, receive, self.settings.max_body_bytes)
            if raw is None:  # the client left before it had asked
                return
            watch = Stopwatch()
            request = read_request(raw, dialect)
            aliases = self.aliases.scoped(identity.tenant)
            route = await aliases.resolve(request.model, identity.role, header(scope, b"x-nightschool-exam"))
            allowed = self.settings.training_allowed and identity.training_allowed
            caller = partial(read_caller, scope, request.fields, route, allowed, identity.key_id)
            earlier = await self._earlier(dialect, request, identity.tenant)
            passage = choose_passage(dialect, request, self.settings.upstream, earlier)
        except NightschoolError as error:
            refusal = as_refusal(error)
            self.refused[str(refusal.status)] += 1
            log.warning("Request %s refused (%d %s).", exchange_id, refusal.status, refusal.code)
            overhead_ms = watch.mark_first_byte()
            told = refusal.headers + gateway_headers(exchange_id, "none", overhead_ms)
            await send_json(send, refusal.status, dialect.refusal(refusal), told)
            return
        capture = Capture(exchange_id, caller, raw, request.fields, watch, route.policy, tenant=identity.tenant)
        capture.dialect, capture.reply_dialect, capture.earlier = dialect, passage.dialect, earlier
        capture.polled = is_polled(exchange_id, self.settings.feedback.poll)
        upstream = self.settings.upstream
        path = upstream_path(passage.dialect.path, scope, upstream)
        turn = Turn(passage, capture, send, path, forwarded(scope, upstream, self.settings.access.is_ours))
        await self._serve(turn, route, receive)

    async def _earlier(self, dialect: Dialect, request: ClientRequest, tenant: str) -> tuple[Json, ...]:
        """What an engine without a memory must be told of the conversation that the request goes on with."""
        previous = request.fields.get("previous_response_id")
        if dialect.word in self.settings.upstream.speaks or not isinstance(previous, str):
            return ()
        return await earlier_messages(self.recorder.store.scoped(tenant), self.recorder, previous)

    async def _serve(self, turn: Turn, route: Route, receive: Receive) -> None:
        """Answer, unless the client leaves first; then the engine is told at once. Both are recorded."""
        capture, work = turn.capture, cast(asyncio.Task[Any], asyncio.current_task())
        watching = asyncio.create_task(_stop_when_gone(receive, turn, work))
        try:
            await self._answer(turn, route)
            fail_point("gateway.replied")
        except asyncio.CancelledError:
            if not turn.left:  # the server stops
                capture.status, capture.failure = "aborted", "The gateway stopped before the reply was complete."
                raise
            work.uncancel()
            capture.status, capture.failure = "client_closed", "The client left before the reply was complete."
        finally:
            watching.cancel()
            if not turn.kept:
                self.recorder.submit(capture)

    async def _answer(self, turn: Turn, route: Route) -> None:
        capture = turn.capture
        try:
            with self.policies.using(route.policy):
                with capture.watch.waiting():
                    model, answer = await self._ask(turn, route)
                with answer:
                    await self._copy(turn, model, answer)
        except NightschoolError as error:
            await self._fail(turn, error)
        except Exception as error:  # boundary: a fault of ours must not leave the client without an answer
            where = "".join(traceback.format_tb(error.__traceback__))  # not its message, which may quote a body
            log.error("Exchange %s failed in the gateway (%s):\n%s", capture.id, type(error).__name__, where)
            fault = "The gateway failed.", f"{type(error).__name__} inside it.", "See its log under the exchange's id."
            await self._fail(turn, refuse(500, "gateway_fault", *fault))

    async def _ask(self, turn: Turn, route: Route) -> tuple[str, Answer]:
        """The engine's name of the policy, loaded again where it does not know it (it restarted), and its answer."""
        lease = await self.policies.lease(route.policy, route.model)
        answer = await self._post(turn, lease.model)
        if answer.status == 404 and route.model is None:
            answer.leave()
            lease = await self.policies.renew(lease)
            answer = await self._post(turn, lease.model)
        return lease.model, answer

    async def _post(self, turn: Turn, model: str) -> Answer:
        return await self.engine.post(turn.path, turn.passage.body(model), turn.forwarded)

    async def _copy(self, turn: Turn, model: str, answer: Answer) -> None:
        turn.capture.http_status = answer.status
        turn.capture.is_stream = answer.content_type == "text/event-stream"
        reading = turn.reading = turn.passage.reading(model, answer.status)
        if turn.capture.is_stream:
            await self._copy_stream(turn, answer, reading)
        else:
            await self._copy_plain(turn, answer, reading)

    async def _copy_plain(self, turn: Turn, answer: Answer, reading: SafeReading) -> None:
        with turn.capture.watch.waiting():
            raw = await answer.read()
        turn.capture.reply.append(raw)
        body = reading.plain(raw)
        headers = passed(answer) + turn.headers()
        if self.keeps_first:
            await self._keep(turn)
        turn.started = turn.finished = True
        await send_bytes(turn.send, answer.status, body, headers)

    async def _copy_stream(self, turn: Turn, answer: Answer, reading: SafeReading) -> None:
        """Event by event, as they come; what waits here is never more than one unfinished event.

        Where exchanges are stored first, the event that tells the client of the end waits for that.
        """
        splitter = EventSplitter()
        held: list[bytes] = []
        while True:
            with turn.capture.watch.waiting():
                chunk = await answer.some()
            turn.capture.reply.append(chunk)
            events = splitter.feed(chunk) if chunk else [splitter.rest]
            if self.keeps_first:
                held, events = _hold_last(held, events)
            body = b"".join(map(reading.event, events))
            if not chunk:
                body += b"".join(map(reading.event, held)) + reading.end()
            if reading.fault is not None:
                turn.capture.status, turn.capture.failure = "error", reading.fault
            if not turn.started and (body or not chunk):
                await self._start(turn, answer.status, passed(answer))
            if not chunk and self.keeps_first:
                await self._keep(turn)
            turn.finished = not chunk
            if body or not chunk:
                await turn.send({"type": "http.response.body", "body": body, "more_body": bool(chunk)})
            if not chunk:
                return

    async def _keep(self, turn: Turn) -> None:
        """Store the exchange before its reply's last byte. A store that cannot is no reason to withhold it."""
        turn.kept = True
        stored = asyncio.wrap_future(self.recorder.submit(turn.capture))
        await asyncio.wait((stored,), timeout=KEEP_S)
        fail_point("gateway.kept")

    async def _start(self, turn: Turn, status: int, headers: Headers) -> None:
        turn.started = True
        await turn.send({"type": "http.response.start", "status": status, "headers": headers + turn.headers()})

    async def _fail(self, turn: Turn, error: NightschoolError) -> None:
        """Tell the client: as a reply, or inside a stream that has begun. What had come of the answer stays."""
        refusal = as_refusal(error)
        capture = turn.capture
        capture.status = "truncated" if capture.reply and isinstance(error, UpstreamError) else "error"
        capture.failure = str(error)
        capture.http_status = capture.http_status if turn.started or capture.reply else None
        if turn.finished:
            return
        if turn.started and turn.reading is not None:
            turn.finished = True
            await turn.send({"type": "http.response.body", "body": turn.reading.failure(refusal)})
        else:
            turn.started = turn.finished = True
            await send_json(turn.send, refusal.status, capture.dialect.refusal(refusal), turn.headers())


async def _stop_when_gone(receive: Receive, turn: Turn, work: asyncio.Task[Any]) -> None:
    """Ends the work on a reply that nobody waits for any more."""
    await wait_until_gone(receive)
    if not turn.finished:
        turn.left = True
        work.cancel()


def _hold_last(held: list[bytes], events: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """What is held from now on, and what may go: everything before an event that tells of the end."""
    if held:
        return held + events, []
    last = (i for i, event in enumerate(events) if any(mark in event for mark in LAST_MARKS))
    at = next(last, len(events))
    return events[at:], events[:at]


class ModelCalls:
    """ASGI middleware that sends model calls straight to their routes, past the routing of everything else.

    Units: saves a tenth of the processor time that a call takes on its way.
    """

    def __init__(self, app: ASGIApp, routes: Mapping[str, ASGIApp]) -> None:
        self.app = app
        self.routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        app = self.routes.get(scope["path"], self.app) if is_post else self.app
        await app(scope, receive, send)


class DialectRoute:
    """A proxy's route in one dialect; a class, since Starlette wraps plain functions."""

    def __init__(self, proxy: Proxy, dialect: Dialect) -> None:
        self.proxy = proxy
        self.dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.proxy.call(self.dialect, scope, receive, send)
