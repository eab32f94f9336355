import asyncio
import contextlib
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from nightschool.errors import UpstreamError
from nightschool.upstream import connections
from nightschool.upstream.connections import Answer, Connections, NotConnectedError

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream; charset=utf-8\r\nX-Two: a\r\nx-two: b\r\n"
    b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n6;note=1\r\n world\r\n0\r\ntrailer: x\r\n\r\n"
)
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
UNTIL_CLOSE = b"HTTP/1.0 200 OK\r\ncontent-type: text/plain\r\n\r\nall there is"

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Answers each request on a connection with the next of `replies` in pieces; then hangs up if `closes`."""

    def __init__(self, *replies: list[bytes], closes: bool = False) -> None:
        self.replies = list(replies)
        self.closes = closes
        self.requests: list[bytes] = []
        self.num_connections = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while self.replies:
                self.requests.append(await read_request(reader))
                for part in self.replies.pop(0):
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0)
                if self.closes:
                    break
            else:
                await reader.read()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((line for line in head.split(b"\r\n") if line.startswith(b"content-length: ")), b": 0")
    return head + await reader.readexactly(int(length.partition(b": ")[2]))


@contextlib.asynccontextmanager
async def connected(serve: Serve, url: str = "http://127.0.0.1:{port}", **secure) -> AsyncIterator[Connections]:
    tasks: set[asyncio.Task | None] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError):
            await serve(reader, writer)
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, **secure)
    async with server:
        pool = Connections(url.format(port=server.sockets[0].getsockname()[1]))
        try:
            yield pool
        finally:
            pool.close()
            if tasks:
                await asyncio.wait([task for task in tasks if task], timeout=5)


def asked(server: Server, *paths: str, method: str = "GET") -> list[tuple[Answer, bytes]]:
    async def run() -> list[tuple[Answer, bytes]]:
        async with connected(server) as pool:
            answers = []
            for path in paths or ("/",):
                answer = await pool.ask(method, path, {}, None)
                answers.append((answer, await answer.read()))
            return answers

    return asyncio.run(asyncio.wait_for(run(), 10))


def test_a_request_goes_out_byte_for_byte_with_its_own_headers_first():
    server = Server([OK])

    async def run() -> None:
        async with connected(server, "http://me:a%20b@127.0.0.1:{port}/api") as pool:
            answer = await pool.ask("POST", "/v1/x?q=%C3%A9", {"accept": "text/plain", "x-e": "\u00e9"}, b'{"a":\xff}')
            assert (answer.status, await answer.read()) == (200, b"ok")

    asyncio.run(run())
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /api/v1/x?q=%C3%A9 HTTP/1.1"
    assert lines[1].startswith(b"host: 127.0.0.1:")
    # "me:a b" in base64 is bWU6YSBi
    assert lines[2:] == [b"accept: text/plain", b"authorization: Basic bWU6YSBi", b"x-e: \xe9", b"content-length: 7"]
    assert body == b'{"a":\xff}'


@given(st.data())
def test_however_a_reply_is_cut_into_pieces_it_is_the_same(data):
    whole = INTERIM + CHUNKED
    cuts = sorted(data.draw(st.sets(st.integers(1, len(whole) - 1), max_size=8)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    ((answer, body),) = asked(Server(pieces))
    assert (answer.status, answer.content_type, body) == (200, "text/event-stream", b"hello world")
    assert [value for name, value in answer.headers if name == b"x-two"] == [b"a", b"b"]


def test_a_body_without_a_length_ends_with_its_connection():
    server = Server([UNTIL_CLOSE], [OK], closes=True)
    assert [body for _, body in asked(server, "/1", "/2")] == [b"all there is", b"ok"]
    assert server.num_connections == 2


def test_a_reply_that_breaks_off_is_an_error():
    for broken in (OK[:-1], CHUNKED[:-20], b"HTTP/1.1 200 OK\r\ncontent-le", b""):
        with pytest.raises((UpstreamError, ConnectionResetError)):
            asked(Server([broken], closes=True))


def test_what_is_not_http_is_an_error():
    with pytest.raises(OSError, match="not HTTP"):
        asked(Server([b"SSH-2.0-OpenSSH\r\n\r\n"]))


def test_connections_stay_open_and_are_used_again():
    server = Server([OK], [CHUNKED], [OK])
    assert [body for _, body in asked(server, "/1", "/2", "/3")] == [b"ok", b"hello world", b"ok"]
    assert server.num_connections == 1


def test_a_connection_that_was_idle_for_long_is_not_used_again(monkeypatch):
    monkeypatch.setattr(connections, "KEEP_ALIVE_S", 0.0)
    server = Server([OK], [OK])
    asked(server, "/1", "/2")
    assert server.num_connections == 2


def test_a_connection_that_the_server_closed_is_not_used_again():
    server = Server([OK], [OK], closes=True)

    async def run() -> None:
        async with connected(server) as pool:
            for _ in range(2):
                assert await (await pool.ask("GET", "/", {}, None)).read() == b"ok"
                await asyncio.sleep(0.05)  # the end of the connection arrives

    asyncio.run(run())
    assert server.num_connections == 2


def test_bytes_behind_a_reply_end_its_connection():
    server = Server([OK + b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfake"], [OK])
    assert [body for _, body in asked(server, "/1", "/2")] == [b"ok", b"ok"]


def test_a_head_request_has_no_body():
    server = Server([b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"])
    ((answer, body),) = asked(server, "/", method="HEAD")
    assert (answer.headers, body) == ([(b"content-length", b"5")], b"")


def test_a_post_without_a_body_says_so():
    server = Server([OK])
    asked(server, "/", method="POST")
    assert server.requests[0].endswith(b"content-length: 0\r\n\r\n")


@pytest.mark.parametrize(
    ("path", "headers"),
    [("/a\r\nx: y", {}), ("/a b", {}), ("/", {"x": "a\nb"}), ("/", {"x\r\n": "a"}), ("/", {"x": "\u4e2d"})],
)
def test_nothing_can_be_smuggled_into_a_request(path, headers):
    async def run() -> None:
        with pytest.raises(UpstreamError, match="not sent"):
            await Connections("http://127.0.0.1:9").ask("GET", path, headers, None)

    asyncio.run(run())


def test_a_reader_that_is_slow_holds_the_server_back():
    """64 MiB are offered; before anything is read, no more than the buffers of the system have left the server."""
    sent = 0
    part = b"x" * 2**20

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (64 * len(part)))
        for _ in range(64):
            writer.write(part)
            await writer.drain()
            sent += len(part)

    async def run() -> None:
        async with connected(serve) as pool:
            answer = await pool.ask("GET", "/", {}, None)
            await asyncio.sleep(0.3)
            assert sent < 32 * len(part)
            assert len(await answer.read()) == 64 * len(part)

    asyncio.run(asyncio.wait_for(run(), 30))


def test_leaving_early_closes_the_connection():
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(CHUNKED[:-20])
        await reader.read()
        gone.set()

    async def run() -> None:
        async with connected(serve) as pool:
            with await pool.ask("GET", "/", {}, None) as answer:
                assert await answer.some()
            await asyncio.wait_for(gone.wait(), 5)

    asyncio.run(run())


def test_silence_ends_a_reply(monkeypatch):
    monkeypatch.setattr(connections, "SILENCE_S", 0.1)

    async def run() -> None:
        async with connected(Server([OK[:-1]], [b""])) as pool:
            answer = await pool.ask("GET", "/", {}, None)
            assert await answer.some() == b"o"
            with pytest.raises(UpstreamError, match="TimeoutError"):
                await answer.some()
        async with connected(Server([b""])) as pool:
            with pytest.raises(TimeoutError):
                await pool.ask("GET", "/", {}, None)

    asyncio.run(asyncio.wait_for(run(), 5))


def test_a_certificate_is_checked(tmp_path, monkeypatch):
    certificate, key = self_signed(tmp_path)
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(certificate, key)
    known = ssl.create_default_context(cafile=certificate)

    async def run() -> None:
        url = "https://127.0.0.1:{port}"
        async with connected(Server([OK]), url, ssl=server_side) as pool:
            with pytest.raises(NotConnectedError, match="certificate"):
                await pool.ask("GET", "/", {}, None)
        monkeypatch.setattr(ssl, "create_default_context", lambda: known)
        async with connected(Server([OK]), url, ssl=server_side) as pool:
            assert await (await pool.ask("GET", "/", {}, None)).read() == b"ok"

    asyncio.run(run())


def self_signed(folder) -> tuple[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    day = datetime.timedelta(days=1)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now - day).not_valid_after(now + day).add_extension(here, False)
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "certificate.pem").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(pem))
    (folder / "key.pem").write_bytes(secret)
    return str(folder / "certificate.pem"), str(folder / "key.pem")
