"""An upstream that answers with exactly the bytes a test gives it, at the pace it says, and then hangs up."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One piece of a body in chunked transfer coding."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def plain(body: bytes, status: bytes = b"200 OK", headers: bytes = b"", length: int | None = None) -> bytes:
    """A whole answer; `length` promises another size than the body's."""
    size = len(body) if length is None else length
    head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%s\r\n"
    return head % (status, size, headers) + body


class HalfClose:
    """Say that nothing more will be sent, and keep the connection."""


@dataclass
class RawUpstream:
    """What was asked, and whether the gateway hung up while an answer was still to come."""

    url: str
    parts: list[bytes | float | HalfClose] = field(default_factory=list)
    num_requests: int = 0
    left: threading.Event = field(default_factory=threading.Event)

    def answer(self, *parts: bytes | float | HalfClose) -> None:
        """What each later request gets: bytes are sent, numbers are seconds of silence."""
        self.parts = list(parts)

    def serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            if not _read_request(connection):
                return
            self.num_requests += 1
            for part in list(self.parts):
                if isinstance(part, float):
                    if _hung_up(connection, part):
                        self.left.set()
                        return
                elif isinstance(part, bytes):
                    connection.sendall(part)
                else:
                    connection.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def raw_upstream() -> Iterator[RawUpstream]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        upstream = RawUpstream(f"http://127.0.0.1:{listener.getsockname()[1]}")

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=upstream.serve, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield upstream
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def _read_request(connection: socket.socket) -> bool:
    raw = b""
    while b"\r\n\r\n" not in raw:
        new = connection.recv(65536)
        if not new:
            return False
        raw += new
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    size = next((int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:")), 0)
    while len(body) < size:
        body += connection.recv(65536)
    return True


def _hung_up(connection: socket.socket, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while (rest := until - time.monotonic()) > 0:
        readable, _, _ = select.select([connection], [], [], rest)
        if readable and connection.recv(65536) == b"":
            return True
    return False
