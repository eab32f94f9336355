"""What the gateway adds to a call: latency through it against direct calls, in one run, with recording on.

    python benchmarks/gateway.py [--rate 200] [--seconds 20] [--json]

Three processes share the machine: a mock engine that answers after 50 ms with token ids and log-probabilities,
the gateway with its store on disk, and this load generator. Requests start at a fixed rate, whether or not
earlier ones are answered (open loop). Direct and gateway calls alternate in blocks of two seconds, so that
both meet the same other load on the machine. Latency counts from the moment the request was due.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import socket
import tempfile
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from nightschool.access.identity import Access
from nightschool.gateway.app import build_app
from nightschool.gateway.server import make_server
from nightschool.gateway.settings import GatewaySettings
from nightschool.store.database import Store
from nightschool.upstream.client import EngineClient

ENGINE_S = 0.05
NUM_TOKENS = 40
BLOCK_S = 2.0
WARM_UP_S = 2.0


def reply_bytes(stream: bool) -> bytes:
    """What the mock engine answers: 40 tokens with ids and log-probabilities, as a reply or as events."""
    entry = {"token": " word", "logprob": -1.234567, "bytes": [32, 119, 111, 114, 100], "top_logprobs": []}
    if not stream:
        message = {"role": "assistant", "content": " word" * NUM_TOKENS}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "token_ids": list(range(NUM_TOKENS))}
        choice["logprobs"] = {"content": [entry] * NUM_TOKENS}
        return json.dumps({"id": "c", "model": "m", "prompt_token_ids": list(range(300)), "choices": [choice]}).encode()
    choice = {"index": 0, "delta": {"content": " word"}, "token_ids": [7], "logprobs": {"content": [entry]}}
    events = [{"id": "c", "model": "m", "choices": [choice]}] * (NUM_TOKENS - 1)
    events.append({"id": "c", "model": "m", "choices": [{**choice, "finish_reason": "stop"}]})
    events[0] = {**events[0], "prompt_token_ids": list(range(300))}
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"


def run_engine(listener: socket.socket) -> None:
    """The mock engine: the first byte after 50 ms, all of it at once."""
    plain, events = reply_bytes(False), reply_bytes(True)

    async def chat(request: Request) -> Response:
        streamed = b'"stream":true' in await request.body()
        await asyncio.sleep(ENGINE_S)
        if not streamed:
            return Response(plain, media_type="application/json")
        return StreamingResponse(iter([events]), media_type="text/event-stream")

    app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
    config = uvicorn.Config(app, log_level="warning", access_log=False, loop="uvloop", http="httptools", ws="none")
    uvicorn.Server(config).run(sockets=[listener])


def run_gateway(listener: socket.socket, engine_url: str, state: Path) -> None:
    """The gateway as it ships, recording to a store on disk."""
    with Store.open(state / "store.sqlite") as store:
        settings = GatewaySettings(state, "shop", Access("admin"), base_model="m")
        make_server(build_app(store, EngineClient(engine_url), settings), "127.0.0.1", 0).run(sockets=[listener])


def spawn(target: Callable[..., None], *arguments: Any) -> tuple[BaseProcess, str]:
    """Run `target` with a listening socket in a process of its own; the process and its URL."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    process = multiprocessing.get_context("fork").Process(target=target, args=(listener, *arguments), daemon=True)
    process.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.close()
    return process, url


class Load:
    """Sends requests at a fixed rate and keeps what they took, in milliseconds."""

    def __init__(self, session: aiohttp.ClientSession, rate: float, stream: bool) -> None:
        self.session = session
        self.rate = rate
        self.stream = stream
        self.latencies: dict[str, list[float]] = {"direct": [], "gateway": []}
        self.overheads: list[float] = []
        self.num_failed = 0
        self.number = 0

    async def block(self, path: str, url: str, seconds: float) -> None:
        """One block of requests to `url`, entered under `path`."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        tasks: list[asyncio.Task[None]] = []
        for i in range(int(seconds * self.rate)):
            due = start + i / self.rate
            await asyncio.sleep(max(0.0, due - loop.time()))
            tasks.append(asyncio.create_task(self.one(path, url, due)))
        await asyncio.gather(*tasks)

    async def one(self, path: str, url: str, due: float) -> None:
        self.number += 1
        question = {"role": "user", "content": f"Order {self.number}: where is my parcel? " + "please " * 40}
        body = json.dumps({"model": "shop", "stream": self.stream, "messages": [question]}, separators=(",", ":"))
        headers = {"content-type": "application/json"}
        try:
            async with self.session.post(f"{url}/v1/chat/completions", data=body, headers=headers) as response:
                await response.content.readany() if self.stream else await response.read()
                self.latencies[path].append((asyncio.get_running_loop().time() - due) * 1000)
                await response.read()
                self.num_failed += response.status != 200
                if path == "gateway":
                    self.overheads.append(float(response.headers["x-nightschool-overhead-ms"]))
        except aiohttp.ClientError:
            self.num_failed += 1


def processor_s(pid: int) -> float:
    """The processor time a process has used, in seconds (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(urls: tuple[str, str], pid: int, rate: float, seconds: float, stream: bool) -> dict[str, Any]:
    """One part: p50 and p99 of both paths, what was added, the gateway's own account and its processor time."""
    engine_url, gateway_url = urls
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        warm = Load(session, rate / 4, stream)
        for path, url in (("direct", engine_url), ("gateway", gateway_url)):
            await warm.block(path, url, WARM_UP_S / 2)
        load = Load(session, rate, stream)
        used = processor_s(pid)
        for _ in range(max(1, round(seconds / BLOCK_S / 2))):
            await load.block("direct", engine_url, BLOCK_S)
            await load.block("gateway", gateway_url, BLOCK_S)
        async with session.get(f"{gateway_url}/health") as response:
            recording = (await response.json())["recording"]
        used = processor_s(pid) - used
    result: dict[str, Any] = {"num_requests": load.number, "num_failed": load.num_failed, "recording": recording}
    for name, values in (*load.latencies.items(), ("overhead_header", load.overheads)):
        p50, p99 = np.percentile(values, [50, 99])
        result[name] = {"p50_ms": round(p50, 3), "p99_ms": round(p99, 3)}
    for p in ("p50_ms", "p99_ms"):
        result.setdefault("added", {})[p] = round(result["gateway"][p] - result["direct"][p], 3)
        result.setdefault("ratio", {})[p] = round(result["gateway"][p] / result["direct"][p], 3)
    result["gateway_processor_ms"] = round(used * 1000 / len(load.latencies["gateway"]), 3)
    return result


def show(title: str, result: dict[str, Any]) -> None:
    recording = result["recording"]
    print(f"\n{title}: {result['num_requests']} requests, {result['num_failed']} failed, recording {recording}")
    print(f"{'':18}{'p50 ms':>10}{'p99 ms':>10}")
    for name in ("direct", "gateway", "added", "ratio", "overhead_header"):
        print(f"{name.replace('_', ' '):18}{result[name]['p50_ms']:>10.2f}{result[name]['p99_ms']:>10.2f}")
    print(f"gateway's processor time per request, recording included: {result['gateway_processor_ms']:.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=200.0, help="requests per second")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each part, both paths together")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        engine, engine_url = spawn(run_engine)
        gateway, gateway_url = spawn(run_gateway, engine_url, Path(folder))
        assert gateway.pid is not None
        try:
            time.sleep(2.0)
            parts = {
                title: asyncio.run(
                    measure((engine_url, gateway_url), gateway.pid, options.rate, options.seconds, stream)
                )
                for title, stream in (("plain", False), ("stream, first byte", True))
            }
        finally:
            for process in (gateway, engine):
                process.terminate()
                process.join()
    report = {"rate": options.rate, "engine_ms": ENGINE_S * 1000, "parts": parts}
    if options.json:
        print(json.dumps(report, indent=1))
    else:
        for title, result in parts.items():
            show(title, result)


if __name__ == "__main__":
    main()
