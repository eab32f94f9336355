"""HTTP/1.1 to one server, over connections that stay open. The wire is read by httptools.

A gateway does this once per call it adds to, so the path is short: one write for a request, no task of its own for
a reply. Budget: 50 µs of processor time for a request and a reply of some kilobytes.
"""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from collections import deque
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import httptools

from nightschool.errors import UpstreamError

CONNECT_S = 5.0
SILENCE_S = 600.0
# Shorter than the 5 s after which uvicorn closes an idle connection: a request never meets a closing one.
KEEP_ALIVE_S = 2.0
MAX_AHEAD = 2**18  # bytes of a reply that wait to be read before the server is held back
PORTS = {"http": 80, "https": 443}
NO_BODY = (204, 304)
FRAMED = frozenset({b"content-length", b"transfer-encoding"})

Headers = list[tuple[bytes, bytes]]


class NotConnectedError(ConnectionError):
    """No connection was opened, so nothing was sent."""


class Answer:
    """A reply that comes in. `headers` keeps order and repeated names, in lower case.

    It is a context: leaving it before the reply's end drops the request.
    """

    def __init__(self, connection: Connection) -> None:
        self.status = 0
        self.headers: Headers = []
        self.complete = False
        self._connection = connection
        self._parts: list[bytes] = []
        self._num_waiting = 0
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.leave()

    @property
    def content_type(self) -> str:
        value = next((value for name, value in self.headers if name == b"content-type"), b"")
        return value.decode("latin-1").partition(";")[0].strip().lower()

    async def read(self) -> bytes:
        """The whole body. Raises: UpstreamError when the server goes away before its end."""
        parts: list[bytes] = []
        while part := await self.some():
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def some(self) -> bytes:
        """The next bytes as they arrive, empty at the end. Raises: UpstreamError as `read` does."""
        while not self._parts:
            if self._error is not None:
                raise cut(self._error) from self._error
            if self.complete:
                return b""
            await self._wait()
        some = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts, self._num_waiting = [], 0
        self._connection.resume(self)
        return some

    async def head(self) -> None:
        """Waits until status and headers are there. Raises: OSError when the server goes away or stays silent."""
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._wait()

    def leave(self) -> None:
        """Nobody reads on: an unfinished reply is cut off."""
        if not self.complete:
            self._connection.abort()

    def add(self, part: bytes) -> int:
        """One more part of the body; how many bytes wait now."""
        self._parts.append(part)
        self._num_waiting += len(part)
        self.wake()
        return self._num_waiting

    def fail(self, error: Exception) -> None:
        if not self.complete and self._error is None:
            self._error = error
            self.wake()

    def wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter


class Connection(asyncio.Protocol):
    """One connection, which carries one request at a time."""

    def __init__(self, pool: Connections) -> None:
        self.idle_since = 0.0
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._answer: Answer | None = None
        self._paused = False
        self._heard_at = 0.0
        self._alarm: asyncio.TimerHandle | None = None

    def ask(self, request: bytes, has_body: bool) -> Answer:
        """Send a request; the answer that will come in. `has_body` is False when the reply to it has none."""
        answer = Answer(self)
        if self._transport.is_closing():  # since it was opened, or taken back
            answer.fail(ConnectionResetError("the server closed the connection"))
            return answer
        self._answer = answer
        self._parser = httptools.HttpResponseParser(self)
        self._has_body = has_body
        self._heard_at = self._loop.time()
        if self._alarm is None:
            self._alarm = self._loop.call_later(SILENCE_S, self._listen)
        self._transport.write(request)
        return answer

    def usable(self, now: float) -> bool:
        return now - self.idle_since < KEEP_ALIVE_S and not self._transport.is_closing()

    def abort(self) -> None:
        """Close at once; what is under way is lost."""
        self._transport.abort()

    def resume(self, answer: Answer) -> None:
        """Its reader has taken what waited."""
        if self._paused and answer is self._answer:
            self._paused = False
            self._transport.resume_reading()

    def _listen(self) -> None:
        """Ends a reply of which nothing was heard for too long; without one, ends itself."""
        self._alarm = None
        if self._answer is None:
            return
        left_s = SILENCE_S if self._paused else self._heard_at + SILENCE_S - self._loop.time()
        if left_s > 0:
            self._alarm = self._loop.call_later(left_s, self._listen)
            return
        self._answer.fail(TimeoutError(f"nothing came for {SILENCE_S:.0f} s"))
        self.abort()

    # what the event loop tells

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._pool.know(self)

    def data_received(self, data: bytes) -> None:
        if self._answer is None:  # nothing was asked
            self.abort()
            return
        self._heard_at = self._loop.time()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self._answer is not None:
                self._answer.fail(ConnectionError(f"its reply is not HTTP: {error}"))
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        answer, self._answer = self._answer, None
        if self._alarm is not None:
            self._alarm.cancel()
        self._pool.forget(self)
        if answer is None:
            return
        ends_so = exc is None and answer.status and FRAMED.isdisjoint(name for name, _ in answer.headers)
        if ends_so:  # a body without a length ends with its connection
            answer.complete = True
            answer.wake()
        answer.fail(exc or ConnectionResetError("the server closed the connection"))

    # what the parser tells

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._answer is not None:
            self._answer.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        answer, status = self._answer, self._parser.get_status_code()
        if answer is None:
            return
        if status < 200:  # the reply itself follows
            answer.headers = []
            return
        answer.status = status
        if self._has_body:
            answer.wake()
        else:
            self._finish(False)

    def on_body(self, body: bytes) -> None:
        if self._answer is not None and self._answer.add(body) > MAX_AHEAD and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._answer is not None and self._answer.status:
            self._finish(self._parser.should_keep_alive())

    def _finish(self, keep: bool) -> None:
        answer, self._answer = self._answer, None
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        if answer is not None:
            answer.complete = True
            answer.wake()
        if keep and not self._transport.is_closing():
            self.idle_since = self._loop.time()
            self._pool.take_back(self)
        else:
            self._transport.close()


class Connections:
    """Connections to the server of one URL, opened as they are needed. Belongs to one event loop."""

    def __init__(self, base_url: str) -> None:
        url = urlsplit(base_url)
        self._host = url.hostname or ""
        self._port = url.port or PORTS[url.scheme]
        self._ssl = ssl.create_default_context() if url.scheme == "https" else None
        self._prefix = url.path
        self._own = {"host": _host_header(url), "accept": "*/*", **_credentials(url)}
        self._idle: deque[Connection] = deque()  # the one used last at the end
        self._all: set[Connection] = set()

    async def ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        """Send a request byte for byte; the head of its answer.

        Raises:
            NotConnectedError: no connection was opened.
            OSError: the server went away, or was silent too long (TimeoutError); it may have seen the request.
            UpstreamError: the request cannot be written as HTTP.
        """
        if body is not None or method == "POST":
            headers = {**headers, "content-length": str(len(body or b""))}
        request = _head(method, self._prefix + path, {**self._own, **headers}) + (body or b"")
        connection = self._reusable() or await self._connect()
        answer = connection.ask(request, method != "HEAD")
        try:
            await answer.head()
        except BaseException:
            answer.leave()
            raise
        return answer

    def take_back(self, connection: Connection) -> None:
        """Keep a connection whose reply is complete, and close those that have been idle for long."""
        self._idle.append(connection)
        while not self._idle[0].usable(connection.idle_since):
            self._idle.popleft().abort()

    def know(self, connection: Connection) -> None:
        """It is open."""
        self._all.add(connection)

    def forget(self, connection: Connection) -> None:
        """It is closed."""
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """Close all of them; what is under way is lost."""
        for connection in list(self._all):
            connection.abort()

    def _reusable(self) -> Connection | None:
        if not self._idle:
            return None
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if connection.usable(now):
                return connection
            connection.abort()
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                _, connection = await loop.create_connection(
                    lambda: Connection(self), self._host, self._port, ssl=self._ssl
                )
        except OSError as error:  # a timeout is one
            raise NotConnectedError(str(error)) from error
        return connection


def cut(error: BaseException) -> UpstreamError:
    """The connection broke when the request may have been seen."""
    return UpstreamError(
        "The engine went away before its answer was complete.",
        f"The connection broke ({type(error).__name__}).",
        "Send the request again; see `nightschool doctor` if it happens again.",
    )


def _head(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    text = "\r\n".join(lines)
    if text.count("\r") == text.count("\n") == len(lines) - 1 and " " not in target and "\0" not in text:
        try:
            return f"{text}\r\n\r\n".encode("latin-1")
        except UnicodeEncodeError:
            pass
    raise UpstreamError(
        "The request was not sent.",
        "Its path or one of its headers has a character that HTTP does not know there.",
        "Correct it; a key from the environment may hold a line break.",
    )


def _host_header(url: SplitResult) -> str:
    host = url.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return host if url.port in (None, PORTS[url.scheme]) else f"{host}:{url.port}"


def _credentials(url: SplitResult) -> dict[str, str]:
    if url.username is None:
        return {}
    pair = f"{unquote(url.username)}:{unquote(url.password or '')}"
    return {"authorization": f"Basic {b64encode(pair.encode()).decode()}"}
