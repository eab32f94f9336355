"""What an upstream, a client or a clock can do wrong: replies go on, nothing is lost, and nothing wrong is trained."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator

import openai
import pytest
import sqlalchemy as sa
from fake_engine import serve
from raw_upstream import HEAD, LAST_CHUNK, HalfClose, RawUpstream, chunk, plain, raw_upstream

from nightschool.access.identity import Access
from nightschool.gateway.app import build_app
from nightschool.gateway.settings import GatewaySettings
from nightschool.store.database import Store
from nightschool.store.exchanges import session_exchanges
from nightschool.store.schema import exchanges
from nightschool.upstream import connections
from nightschool.upstream.client import EngineClient
from nightschool.upstream.settings import UpstreamSettings

ASK = {"model": "shop", "messages": [{"role": "user", "content": "Hi"}]}
REPLY = {
    "id": "chatcmpl-7",
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}],
}


def event(content: str, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish_reason}
    return b"data: " + json.dumps({"id": "chatcmpl-7", "choices": [choice]}).encode() + b"\n\n"


@pytest.fixture
def upstream() -> Iterator[RawUpstream]:
    with raw_upstream() as made:
        yield made


@pytest.fixture
def gateway(open_gateway, upstream):
    """In front of an upstream that gives no tokens, so that every byte must pass."""
    return open_gateway(
        engine_url=upstream.url, agent="m", base_model="m", upstream=UpstreamSettings(gives_tokens=False)
    )


def stream_raw(gateway, body: dict) -> tuple[int, bytes]:
    status, _, raw = gateway.chat({**body, "model": "m", "stream": True})
    return status, raw


def stored(gateway, count: int = 1) -> list[sa.Row]:
    """The rows, once there are `count` of them."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        with gateway.store.read() as conn:
            rows = conn.execute(exchanges.select().order_by(exchanges.c.id)).all()
        if len(rows) >= count:
            break
        time.sleep(0.01)
    assert len(rows) == count
    return list(rows)


def reply_text(gateway, row: sa.Row) -> str | None:
    return gateway.recorded(row.id).choices[0].message.get("content")


# ---- the upstream -----------------------------------------------------------------------------------------------


def test_a_slow_first_byte_is_waited_for_and_is_not_our_overhead(gateway, upstream):
    upstream.answer(1.0, HEAD, chunk(event("Hello", "stop")), chunk(b"data: [DONE]\n\n"), LAST_CHUNK)
    status, headers, raw = gateway.chat({**ASK, "model": "m", "stream": True})
    assert (status, raw) == (200, event("Hello", "stop") + b"data: [DONE]\n\n")
    assert float(headers["x-nightschool-overhead-ms"]) < 500
    [row] = stored(gateway)
    assert row.status == "ok"
    assert row.first_byte_ms > 950


def test_an_upstream_that_stays_silent_is_given_up(gateway, upstream, monkeypatch):
    monkeypatch.setattr(connections, "SILENCE_S", 0.3)
    upstream.answer(20.0)
    status, _, raw = gateway.chat({**ASK, "model": "m"})
    assert status == 502
    assert "No byte came" in json.loads(raw)["error"]["message"]
    [row] = stored(gateway)
    assert (row.status == "ok", row.training_allowed) == (False, False)
    assert upstream.num_requests == 1, "a request that may have been seen is never sent twice"


@pytest.mark.parametrize("ending", [(), (HalfClose(), 1.0)], ids=["closed", "half-closed"])
def test_a_stream_that_is_cut_keeps_what_came_and_is_no_success(gateway, upstream, ending):
    upstream.answer(HEAD, chunk(event("Hel")), chunk(event("lo")), *ending)
    status, raw = stream_raw(gateway, ASK)
    assert status == 200
    assert raw.startswith(event("Hel") + event("lo"))
    error = json.loads(raw.removeprefix(event("Hel") + event("lo")).removeprefix(b"data: "))["error"]
    assert "went away" in error["what"]
    [row] = stored(gateway)
    assert (row.status, row.training_allowed, row.fidelity) == ("truncated", False, "text_only")
    assert reply_text(gateway, row) == "Hello"


@pytest.mark.parametrize("ending", [(), (HalfClose(), 1.0)], ids=["closed", "half-closed"])
def test_a_plain_reply_that_is_cut_is_an_error_in_words(gateway, upstream, ending):
    raw = json.dumps(REPLY).encode()
    upstream.answer(plain(raw[:40], length=len(raw)), *ending)
    status, _, body = gateway.chat({**ASK, "model": "m"})
    assert status == 502
    assert "went away" in json.loads(body)["error"]["what"]
    [row] = stored(gateway)
    assert (row.status == "ok", row.training_allowed) == (False, False)


GARBAGE = [
    b"data: {\n\n",
    b"data: null\n\n",
    b"data: [1]\n\n",
    b'data: {"choices": 7}\n\n',
    b'data: {"choices": [7, null, {"index": {}, "delta": []}]}\n\n',
    b'data: {"choices": [{"index": 0, "delta": {"tool_calls": "no"}}]}\n\n',
    b'data: {"choices": [{"index": 0, "delta": {"tool_calls": [null, {"index": []}]}}]}\n\n',
    b'data: {"choices": [{"index": 0, "delta": {"content": 5}, "logprobs": [], "token_ids": "x"}]}\n\n',
    b"data: \xff\xfe\xc3\n\n",
    b"\x00\x01\x02",
    b"event: ping\n\n\n\n: x\n\n",
    b"<html>Bad gateway</html>",
]


@pytest.mark.parametrize("piece", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_between_events_passes_and_never_trains_by_mistake(gateway, upstream, piece):
    upstream.answer(HEAD, chunk(event("Hel")), chunk(piece), chunk(event("lo", "stop")), LAST_CHUNK)
    status, raw = stream_raw(gateway, ASK)
    assert (status, raw) == (200, event("Hel") + piece + event("lo", "stop"))
    [row] = stored(gateway)
    assert row.fidelity == "text_only"
    assert gateway.app.state.recorder.counts()["lost"] == 0
    status, _, raw = gateway.chat({**ASK, "model": "m", "stream": True})
    assert status == 200, "the gateway goes on"


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (b"429 Too Many Requests", b"retry-after: 7\r\n", b'{"error": {"message": "Slow down.", "code": 429}}'),
        (b"500 Internal Server Error", b"", b"<html>oops</html>"),
        (b"503 Service Unavailable", b"", b""),
        (b"418 I'm a teapot", b"x-odd: yes\r\n", b"\xff\xfe"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_a_refusal_passes_with_its_headers_and_is_not_tried_again(gateway, upstream, status, headers, body, streamed):
    upstream.answer(plain(body, status, headers))
    found, got, raw = gateway.chat({**ASK, "model": "m", "stream": streamed})
    assert (found, raw) == (int(status[:3]), body)
    for line in headers.splitlines():
        name, _, value = line.decode().partition(": ")
        assert got[name] == value
    assert upstream.num_requests == 1
    [row] = stored(gateway)
    assert (row.status == "ok", row.training_allowed, row.http_status) == (False, False, int(status[:3]))


def test_an_upstream_that_is_not_there_is_named(open_gateway):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    gateway = open_gateway(
        engine_url=f"http://127.0.0.1:{port}", base_model="m", upstream=UpstreamSettings(gives_tokens=False)
    )
    status, _, raw = gateway.chat(ASK)
    assert status == 502
    assert f"127.0.0.1:{port}" in json.loads(raw)["error"]["why"]
    assert stored(gateway)[0].training_allowed is False


# ---- the client -------------------------------------------------------------------------------------------------


def test_a_client_that_leaves_in_a_stream_leaves_its_part_behind(gateway, upstream):
    upstream.answer(HEAD, chunk(event("Hel")), 20.0)
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as client:
        stream = client.chat.completions.create(model="m", messages=ASK["messages"], stream=True)
        assert next(iter(stream)).choices[0].delta.content == "Hel"
        stream.close()
    assert upstream.left.wait(10), "the upstream is told at once"
    [row] = stored(gateway)
    assert (row.status == "ok", row.training_allowed) == (False, False)
    assert row.error
    assert reply_text(gateway, row) == "Hel"


def test_a_client_that_leaves_on_reading_the_end_has_a_complete_reply(gateway, upstream):
    """As the official client does on [DONE]; an engine may end its answer a moment later."""
    upstream.answer(HEAD, chunk(event("Hello", "stop")), chunk(b"data: [DONE]\n\n"), 20.0, LAST_CHUNK)
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as client:
        list(client.chat.completions.create(model="m", messages=ASK["messages"], stream=True))
    assert upstream.left.wait(10), "it had not ended its answer"
    [row] = stored(gateway)
    assert (row.status, row.error, row.training_allowed) == ("ok", None, True)
    assert reply_text(gateway, row) == "Hello"


def test_a_client_that_leaves_before_the_first_byte_is_kept_without_a_reply(gateway, upstream):
    upstream.answer(20.0)
    connection = http.client.HTTPConnection(gateway.url.removeprefix("http://"))
    body = json.dumps({**ASK, "model": "m"}).encode()
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    until = time.monotonic() + 10
    while not upstream.num_requests and time.monotonic() < until:
        time.sleep(0.01)
    connection.close()
    assert upstream.left.wait(10)
    [row] = stored(gateway)
    assert (row.status == "ok", row.training_allowed, row.http_status) == (False, False, None)
    assert gateway.recorded(row.id).choices == ()


@pytest.mark.parametrize("sent", [b"POST /v1/chat/completions HTTP/1.1\r\n", b"", b"\x00" * 100])
def test_a_client_that_never_finished_asking_leaves_nothing(gateway, upstream, sent):
    host, port = gateway.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(sent)
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{")
    upstream.answer(plain(json.dumps(REPLY).encode()))
    assert gateway.chat({**ASK, "model": "m"})[0] == 200
    stored(gateway)
    assert upstream.num_requests == 1


# ---- the machine ------------------------------------------------------------------------------------------------


def test_two_gateways_on_one_store_lose_nothing_and_know_each_others_sessions(tmp_path, engine):
    """Two processes' worth of writers: each has a store, a writer thread and a recorder of its own."""
    path = tmp_path / "store.sqlite"
    settings = GatewaySettings(state=tmp_path, agent="shop", access=Access("admin"))
    with serve(engine.app()) as url, Store.open(path) as one, Store.open(path) as two:
        with (
            serve(build_app(one, EngineClient(url), settings)) as first,
            serve(build_app(two, EngineClient(url), settings)) as second,
        ):

            def converse(number: int) -> None:
                question = {"role": "user", "content": f"question {number}"}
                history = [question]
                for turn in range(4):  # each turn goes to the other gateway
                    base = (first, second)[turn % 2]
                    with openai.OpenAI(base_url=f"{base}/v1", api_key="any", max_retries=0) as client:
                        reply = client.chat.completions.create(
                            model="shop", messages=history, extra_headers={"x-nightschool-user": f"u{number}"}
                        )
                    history += [reply.choices[0].message.model_dump(), {"role": "user", "content": f"go on {turn}"}]
                    wait_stored(one, number, turn + 1)

            threads = [threading.Thread(target=converse, args=(number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        with one.read() as conn:
            rows = conn.execute(sa.select(exchanges.c.session_id, exchanges.c.principal, exchanges.c.status)).all()
            integrity = conn.execute(sa.text("PRAGMA integrity_check")).scalar_one()
    assert integrity == "ok"
    assert [row.status for row in rows] == ["ok"] * 32
    sessions = {row.principal: row.session_id for row in rows}
    assert len(sessions) == len(set(sessions.values())) == 8
    assert {(row.principal, row.session_id) for row in rows} == set(sessions.items())


def wait_stored(store: Store, number: int, count: int) -> None:
    """Until user `number` has `count` exchanges: a person's next turn takes longer than a commit."""
    query = sa.select(sa.func.count()).where(exchanges.c.principal.endswith(f"u{number}"))
    until = time.monotonic() + 10
    while time.monotonic() < until:
        with store.read() as conn:
            if conn.execute(query).scalar_one() >= count:
                return
        time.sleep(0.01)
    raise AssertionError(f"turn {count} of user {number} was never stored")


def test_a_clock_that_jumps_back_breaks_neither_sessions_nor_their_order(open_gateway, monkeypatch):
    gateway = open_gateway()
    now, jump = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: now() - jump[0])
    history = [{"role": "user", "content": "Hi"}]
    keys = []
    for jump[0] in (0.0, 3600.0, 7200.0):  # the clock of this turn
        _, headers, raw = gateway.chat({"model": "shop", "messages": history})
        keys.append(headers["x-nightschool-exchange"])
        gateway.recorded(keys[-1])
        history += [json.loads(raw)["choices"][0]["message"], {"role": "user", "content": f"again {jump[0]}"}]
    found = [gateway.recorded(key) for key in keys]
    assert len({exchange.session_id for exchange in found}) == 1
    assert [exchange.parent_exchange_id for exchange in found] == [None, keys[0], keys[1]]
    assert all(exchange.status == "ok" for exchange in found)
    with gateway.store.read() as conn:
        ordered = session_exchanges(conn, gateway.store.tenant, found[0].session_id)
    assert [exchange.id for exchange in ordered] == keys
    for row in (gateway.row(key) for key in keys):
        assert 0 <= row.overhead_ms <= row.duration_ms < 60_000, "durations are of a clock that never jumps"
