"""What the gateway adds to a call, with recording on, beside LiteLLM in the same run.

    python benchmarks/gateway.py [--rate 200] [--seconds 20] [--capacity 700] [--no-litellm]
    python benchmarks/gateway.py --soak 30

Processes share the machine: a mock engine that answers after 50 ms, the gateway with its store on disk (once in front
of an engine that gives token ids, which it asks for and strips, once of one that does not), LiteLLM's proxy (in an
environment of its own below benchmarks/out, without a database, so that it records nothing), and this load generator.

Requests start at a fixed rate, whether or not earlier ones are answered (open loop); a latency counts from the moment
the request was due. Direct and other paths alternate in blocks of two seconds, so that all meet the same other load on
the machine. First bytes of streams are measured one stream at a time, paths in turn. `--soak` sends mixed load for that
many minutes and fits the growth of the gateway's resident memory, with the upper end of its 95 % interval.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import uvicorn
import uvloop
from common import OUT, Row, at_most, exactly, machine_facts, report, tell

from nightschool.access.identity import Access
from nightschool.gateway.app import build_app
from nightschool.gateway.server import make_server
from nightschool.gateway.settings import GatewaySettings
from nightschool.store.database import Store
from nightschool.upstream.client import EngineClient
from nightschool.upstream.settings import UpstreamSettings

ENGINE_S = 0.05
STEP_S = 0.01
NUM_TOKENS = 40
BLOCK_S = 2.0
WARM_UP_S = 3.0
STREAM_PAIRS = 120
LITELLM = "litellm[proxy]==1.94.3"
SOAK_RATE = 60.0
SAMPLE_S = 5.0


def reply_bytes(stream: bool, tokens: bool = True) -> bytes:
    """What the mock engine answers: 40 tokens, with ids and log-probabilities where those were asked for."""
    entry = {"token": " word", "logprob": -1.234567, "bytes": [32, 119, 111, 114, 100], "top_logprobs": []}
    usage = {"prompt_tokens": 300, "completion_tokens": NUM_TOKENS, "total_tokens": 300 + NUM_TOKENS}
    head = {"id": "chatcmpl-1", "created": 1, "model": "m"}
    if not stream:
        choice: dict[str, Any] = {"index": 0, "message": {"role": "assistant", "content": " word" * NUM_TOKENS}}
        choice |= {"finish_reason": "stop", "logprobs": {"content": [entry] * NUM_TOKENS} if tokens else None}
        reply = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
        if tokens:
            choice["token_ids"], reply["prompt_token_ids"] = list(range(NUM_TOKENS)), list(range(300))
        return json.dumps(reply).encode()
    choice = {"index": 0, "delta": {"role": "assistant", "content": " word"}, "finish_reason": None}
    if tokens:
        choice |= {"token_ids": [7], "logprobs": {"content": [entry]}}
    events = [{**head, "object": "chat.completion.chunk", "choices": [choice]}] * (NUM_TOKENS - 1)
    events.append({**events[0], "choices": [{**choice, "finish_reason": "stop"}]})
    if tokens:
        events[0] = {**events[0], "prompt_token_ids": list(range(300))}
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"


class MockEngine:
    """Answers after 50 ms; a stream with its first event, and the others a step later."""

    def __init__(self) -> None:
        self.replies = {(s, t): reply_bytes(s, t) for s in (False, True) for t in (False, True)}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        more = scope["type"] == "http"
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        streamed = b'"stream":true' in body or b'"stream": true' in body
        await asyncio.sleep(ENGINE_S)
        kind = b"text/event-stream" if streamed else b"application/json"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        reply = self.replies[streamed, b'"return_token_ids"' in body]
        if streamed:
            first = reply.index(b"\n\n") + 2
            await send({"type": "http.response.body", "body": reply[:first], "more_body": True})
            await asyncio.sleep(STEP_S)
            reply = reply[first:]
        await send({"type": "http.response.body", "body": reply})


def run_engine(listener: socket.socket) -> None:
    config = uvicorn.Config(
        MockEngine(), log_level="warning", access_log=False, loop="uvloop", http="httptools", ws="none", lifespan="off"
    )
    uvicorn.Server(config).run(sockets=[listener])


def run_gateway(listener: socket.socket, engine_url: str, state: Path, gives_tokens: bool) -> None:
    """The gateway as it ships, recording to a store on disk."""
    state.mkdir()
    with Store.open(state / "store.sqlite") as store:
        upstream = UpstreamSettings(gives_tokens=gives_tokens)
        settings = GatewaySettings(state, "shop", Access("admin"), base_model="m", upstream=upstream)
        make_server(build_app(store, EngineClient(engine_url), settings), "127.0.0.1", 0).run(sockets=[listener])


@contextlib.contextmanager
def spawned(target: Callable[..., None], *arguments: Any) -> Iterator[tuple[BaseProcess, str]]:
    """Run `target` with a listening socket in a process of its own; the process and its URL."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    process = multiprocessing.get_context("fork").Process(target=target, args=(listener, *arguments), daemon=True)
    process.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.close()
    try:
        yield process, url
    finally:
        process.terminate()
        process.join()


@contextlib.contextmanager
def litellm(engine_url: str, folder: Path) -> Iterator[str]:
    """LiteLLM's proxy in front of the mock, one worker as the gateway has one; installed at first use."""
    home = OUT / "litellm"
    program = home / "bin" / "litellm"
    if not program.exists():
        tell("installing LiteLLM in an environment of its own")
        OUT.mkdir(exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        subprocess.run([home / "bin" / "pip", "install", "-q", LITELLM], check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    parameters = {"model": "openai/m", "api_base": f"{engine_url}/v1", "api_key": "none"}
    config = folder / "litellm.yaml"
    config.write_text(json.dumps({"model_list": [{"model_name": "shop", "litellm_params": parameters}]}))
    words = [str(program), "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "PYTHONPATH": ""}
    with (folder / "litellm.log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, env={**os.environ, **quiet})
    try:
        url = f"http://127.0.0.1:{port}"
        wait_ready(f"{url}/health/liveliness", 120.0)
        yield url
    finally:
        process.terminate()
        process.wait()


def wait_ready(url: str, timeout_s: float) -> None:
    until = time.monotonic() + timeout_s
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


@dataclass
class Load:
    """Sends requests and keeps what they took, in milliseconds, by path."""

    session: aiohttp.ClientSession
    latencies: dict[str, list[float]] = field(default_factory=dict)
    num_sent: int = 0
    num_failed: int = 0

    async def block(self, name: str, url: str, seconds: float, rate: float, stream: bool | None = False) -> None:
        """One block of requests to `url` at a fixed rate; `stream` None takes turns."""
        start = time.perf_counter()  # not the loop's clock, which counts whole milliseconds
        tasks: list[asyncio.Task[None]] = []
        for i in range(int(seconds * rate)):
            due = start + i / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(self.one(name, url, due, bool(i % 2) if stream is None else stream)))
        await asyncio.gather(*tasks)

    async def one(self, name: str, url: str, due: float, stream: bool) -> None:
        self.num_sent += 1
        question = {"role": "user", "content": f"Order {self.num_sent}: where is my parcel? " + "please " * 40}
        body = json.dumps({"model": "shop", "stream": stream, "messages": [question]}, separators=(",", ":"))
        headers = {"content-type": "application/json", "authorization": "Bearer sk-none"}
        try:
            async with self.session.post(f"{url}/v1/chat/completions", data=body, headers=headers) as response:
                await response.content.readany() if stream else await response.read()
                self.latencies.setdefault(name, []).append((time.perf_counter() - due) * 1000)
                await response.read()
                self.num_failed += response.status != 200
        except aiohttp.ClientError:
            self.num_failed += 1

    def added(self, name: str, percent: float) -> float:
        """Milliseconds that the path adds to the direct one at a percentile."""
        return float(np.percentile(self.latencies[name], percent) - np.percentile(self.latencies["direct"], percent))


Urls = dict[str, str]


@contextlib.asynccontextmanager
async def load() -> Any:
    """A load generator of its own connections, which no garbage collection stops."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        gc.collect()
        gc.disable()
        try:
            yield Load(session)
        finally:
            gc.enable()


async def at_a_rate(urls: Urls, rate: float, seconds: float) -> Load:
    """All paths in blocks, in turn."""
    async with load() as warm:
        for name, url in urls.items():
            await warm.block(name, url, WARM_UP_S, rate / 4)
    async with load() as made:
        for turn in range(max(2, round(seconds / BLOCK_S))):
            order = list(urls.items())
            for name, url in order if turn % 2 else reversed(order):
                await made.block(name, url, BLOCK_S, rate)
    return made


async def one_stream(urls: Urls, pairs: int) -> Load:
    """First bytes, one stream at a time."""
    async with load() as made:
        for turn in range(pairs + 5):
            if turn == 5:
                made.latencies.clear()
            order = list(urls.items())
            for name, url in order if turn % 2 else reversed(order):
                await made.one(name, url, time.perf_counter(), True)
    return made


async def recording(url: str) -> dict[str, int]:
    """The gateway's own account, once nothing waits."""
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{url}/health") as response:
                counts = (await response.json())["recording"]
            if not counts["queue"]:
                return counts
            await asyncio.sleep(0.1)


def processor_s(pid: int) -> float:
    """The processor time a process has used, in seconds (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def latency_rows(title: str, made: Load, bounds: dict[float, float]) -> list[Row]:
    """What each path adds, with the claims about the gateway; the direct path as it is."""
    rows: list[Row] = []
    for name in made.latencies:
        for percent in (50, 99):
            label = f"{title}: {name}{'' if name == 'direct' else ' adds'} p{percent}, ms"
            if name == "gateway" and percent in bounds:
                rows.append(at_most(label, made.added(name, percent), bounds[percent]))
            else:
                value = np.percentile(made.latencies[name], percent) if name == "direct" else made.added(name, percent)
                rows.append(Row(label, f"{value:.2f}"))
    return [*rows, exactly(f"{title}: failed of {made.num_sent}", made.num_failed, 0)]


async def measure(options: argparse.Namespace, engine: str, plain: Urls, tokens: Urls, pid: int) -> list[Row]:
    """Every part; `plain` and `tokens` hold the paths beside the direct one."""
    tell(f"plain, {options.rate:g}/s")
    used = processor_s(pid)
    made = await at_a_rate({"direct": engine, **plain}, options.rate, options.seconds)
    counts = await recording(plain["gateway"])
    used = (processor_s(pid) - used) * 1000 / counts["stored"]
    rows = latency_rows(f"{options.rate:g}/s", made, {50: 0.6, 99: 6.0})
    rows.append(Row("gateway's processor time per exchange, recording included, ms", f"{used:.2f}"))
    tell("with token ids")
    made = await at_a_rate({"direct": engine, **tokens}, options.rate, options.seconds)
    rows += latency_rows(f"{options.rate:g}/s, ids stripped", made, {50: 1.0, 99: 6.0})
    tell("first bytes of one stream at a time")
    made = await one_stream({"direct": engine, **plain}, STREAM_PAIRS)
    rows += latency_rows("one stream, first byte", made, {50: 1.0})
    tell(f"{options.capacity:g}/s")
    async with load() as made:
        await made.block("gateway", plain["gateway"], options.seconds / 2, options.capacity)
    p50, p99 = np.percentile(made.latencies["gateway"], [50, 99])
    rows.append(exactly(f"{options.capacity:g}/s: failed of {made.num_sent}", made.num_failed, 0))
    rows.append(Row(f"{options.capacity:g}/s: p50 / p99, ms", f"{p50:.1f} / {p99:.1f}"))
    for name, url in (("plain", plain["gateway"]), ("with ids", tokens["gateway"])):
        counts = await recording(url)
        rows.append(exactly(f"{name}: exchanges lost of {counts['stored']}", counts["lost"], 0))
    return rows


async def soak(minutes: float, url: str, pid: int) -> list[Row]:
    """Mixed load; the first fifth warms up."""
    samples: list[tuple[float, float]] = []
    start = time.monotonic()

    async def watch() -> None:
        while True:
            samples.append((time.monotonic() - start, resident_mb(pid)))
            await asyncio.sleep(SAMPLE_S)

    async with load() as made:
        watching = asyncio.create_task(watch())
        while time.monotonic() - start < minutes * 60:
            await made.block("gateway", url, BLOCK_S, SOAK_RATE, stream=None)
            made.latencies.clear()
        watching.cancel()
    counts = await recording(url)
    kept = np.array([sample for sample in samples if sample[0] > minutes * 12])
    slope, upper = slope_with_bound(kept[:, 0], kept[:, 1])
    return [
        at_most("memory growth, upper 95 %, MB per 10 minutes", upper * 600, 1.0, f"fitted {slope * 600:+.2f}"),
        Row("resident memory, first / last, MB", f"{kept[0, 1]:.0f} / {kept[-1, 1]:.0f}"),
        exactly(f"failed of {made.num_sent}", made.num_failed, 0),
        exactly(f"exchanges lost of {counts['stored']}", counts["lost"], 0),
    ]


def slope_with_bound(times: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    """Least-squares slope per second and the upper end of its 95 % interval.

    Neighboring samples depend on each other: they are averaged in twelve stretches of time first.
    """
    from scipy import stats

    parts = np.array_split(np.arange(len(times)), min(12, len(times)))
    fit = stats.linregress([times[part].mean() for part in parts], [values[part].mean() for part in parts])
    return float(fit.slope), float(fit.slope + stats.t.ppf(0.975, len(parts) - 2) * fit.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=200.0, help="requests per second")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each path's share of a part")
    parser.add_argument("--capacity", type=float, default=700.0, help="requests per second that must not fail")
    parser.add_argument("--no-litellm", action="store_true", help="leave LiteLLM out")
    parser.add_argument("--soak", type=float, default=0.0, help="minutes of mixed load instead, for memory")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    machine = machine_facts()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        _, engine = stack.enter_context(spawned(run_engine))
        with_ids, ids_url = stack.enter_context(spawned(run_gateway, engine, folder / "ids", True))
        without, url = stack.enter_context(spawned(run_gateway, engine, folder / "plain", False))
        for ready in (ids_url, url):
            wait_ready(f"{ready}/health", 30.0)
        if options.soak:
            assert with_ids.pid is not None
            report("gateway_soak", options, uvloop.run(soak(options.soak, ids_url, with_ids.pid)), machine)
            return
        plain = {"gateway": url}
        if not options.no_litellm:
            plain["LiteLLM"] = stack.enter_context(litellm(engine, folder))
        assert without.pid is not None
        rows = uvloop.run(measure(options, engine, plain, {"gateway": ids_url}, without.pid))
        report("gateway", options, rows, machine)


if __name__ == "__main__":
    main()
