import asyncio

import pytest

from nightschool.access.middleware import SameSiteOnly

OURS = {"host": "127.0.0.1:8700"}


def status(headers: dict[str, str], method: str = "POST", allowed: tuple[str, ...] = ()) -> int:
    """What a request with these headers gets from a server that says 204 to everything."""
    sent: list[dict] = []

    async def app(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})

    async def send(message) -> None:
        sent.append(message)

    async def receive() -> dict:
        return {"type": "http.request"}

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "headers": raw}
    asyncio.run(SameSiteOnly(app, allowed)(scope, receive, send))
    return sent[0]["status"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9", "LOCALHOST:9", "[::1]", "[::1]:8700", "box.lan:80"])
def test_hosts_of_ours(host):
    assert status({"host": host}, allowed=("Box.lan",)) == 204


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "box.lan", "", "[::2]:8700", "localhost@x"])
def test_other_hosts(host):
    assert status({"host": host}) == 403


def test_no_host_or_two():
    assert status({}) == 403


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"])
def test_other_origins_are_refused_whatever_the_method(method):
    for origin in ("https://evil.example", "null", "http://127.0.0.1:9999", "file://", "http://localhost:8700"):
        assert status(OURS | {"origin": origin}, method) == 403
    assert status(OURS | {"origin": "http://127.0.0.1:8700"}, method) == 204


def test_another_site_may_link_here_but_not_load_from_here():
    cross = OURS | {"sec-fetch-site": "cross-site"}
    assert status(cross | {"sec-fetch-mode": "navigate"}, "GET") == 204
    assert status(cross | {"sec-fetch-mode": "no-cors"}, "GET") == 403
    assert status(cross | {"sec-fetch-mode": "navigate"}, "POST") == 403
    assert status(OURS | {"sec-fetch-site": "same-origin"}) == 204
