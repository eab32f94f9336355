import asyncio
import socket
from pathlib import Path

import pytest
from fake_engine import FakeEngine, serve

from nightschool.errors import UpstreamError
from nightschool.upstream import client as client_module
from nightschool.upstream.client import EngineClient

BODY = b'{"model": "tiny-base", "messages": []}'


def run(engine: FakeEngine, use):
    """`use(client)` against a served fake engine."""

    async def inside(url: str):
        async with EngineClient(f"{url}/v1", "engine-key") as client:
            return await use(client)

    with serve(engine.app()) as url:
        return asyncio.run(inside(url))


def test_score_reads_the_completion_s_own_tokens():
    # The fake engine scores id i with -i / 10; the prompt's ids are not scored.
    engine = FakeEngine()
    assert run(engine, lambda c: c.score("tiny-base", [7, 8], [3, 20])) == [-0.3, -2.0]
    assert run(engine, lambda c: c.score("tiny-base", [7], [])) == []


def test_score_without_a_prompt_is_refused():
    with pytest.raises(UpstreamError, match="at least one token before it"):
        run(FakeEngine(), lambda c: c.score("tiny-base", [], [3]))


@pytest.mark.parametrize(
    "scores",
    [
        None,
        [None],
        [None, None],
        [None, {"3": {"logprob": None}}],
        [None, {"3": {"logprob": -9999.0}}],
        [None, {"4": {}}],
    ],
)
def test_a_missing_score_is_never_a_number(scores, monkeypatch):
    async def demand(self, *_args):
        return {"choices": [{"prompt_logprobs": scores}]}

    monkeypatch.setattr(EngineClient, "_demand", demand)
    with pytest.raises(UpstreamError, match="no log-probability for token 3 at position 1"):
        asyncio.run(EngineClient("http://x").score("m", [9], [3]))


def test_adapters_load_and_unload_and_twice_is_no_error():
    engine = FakeEngine()

    async def use(client: EngineClient) -> list[tuple[str, ...]]:
        seen = []
        for act in (lambda: client.load_adapter("d1", Path("/a/d1")), lambda: client.unload_adapter("d1")):
            await act()
            await act()
            seen.append(await client.models())
        return seen

    assert run(engine, use) == [("tiny-base", "d1"), ("tiny-base",)]
    assert (engine.loads, engine.unloads) == (["d1"], ["d1"])


def test_other_requests_and_the_key():
    engine = FakeEngine()

    async def use(client: EngineClient):
        with await client.chat(BODY) as answer:
            status = answer.status
            await answer.read()
        return status, await client.tokenize({"prompt": "ab"}), await client.health()

    assert run(engine, use) == (200, (97, 98), True)
    assert engine.bodies == [BODY]
    assert engine.headers[0]["authorization"] == "Bearer engine-key"


def test_leaving_early_drops_the_request():
    engine = FakeEngine(words=("a",) * 500, event_delay_s=0.02)

    async def use(client: EngineClient) -> None:
        with await client.chat(b'{"model": "tiny-base", "messages": [], "stream": true}') as answer:
            assert (await answer.some()).startswith(b"data: ")
        while not engine.cut_off.is_set():
            await asyncio.sleep(0.01)

    run(engine, lambda client: asyncio.wait_for(use(client), 5))


def test_nobody_there(monkeypatch):
    monkeypatch.setattr(client_module, "RETRY_PAUSE_S", 0.0)

    async def use() -> None:
        async with EngineClient("http://127.0.0.1:9") as client:
            assert not await client.health()
            await client.models()

    with pytest.raises(UpstreamError, match="cannot be reached"):
        asyncio.run(use())


def test_connecting_is_tried_again_and_a_request_is_not():
    """A port that opens late is found; a server that hangs up after reading is asked once."""
    requests: list[bytes] = []

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"}"))
        writer.close()
        await writer.wait_closed()

    async def ask(client: EngineClient) -> None:
        with await client.chat(BODY):
            pass

    async def use() -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        async with EngineClient(f"http://127.0.0.1:{port}") as client:
            asking = asyncio.create_task(ask(client))
            await asyncio.sleep(0.05)
            server = await asyncio.start_server(hang_up, "127.0.0.1", port)
            async with server:
                await asking

    with pytest.raises(UpstreamError, match="went away") as caught:
        asyncio.run(use())
    assert isinstance(caught.value.__cause__, ConnectionResetError)
    assert len(requests) == 1
