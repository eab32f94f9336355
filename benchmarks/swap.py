"""Does an alias move under load without a failed request?

    python benchmarks/swap.py [--seconds 40] [--parallel 32] [--share 0.7] [--json]

`nightschool up` serves the real model with two small adapters. First the capacity of this machine is measured:
short chats in a closed loop, `--parallel` at a time. Then requests start at random moments (Poisson, `--share` of the
capacity, whether or not earlier ones are answered), every second one streamed, while the alias moves to and fro
every few seconds. Three claims: no request fails, every answer names its version, and an answer to a request that
started 0.3 s or more after a move comes from the version that the alias then pointed to.

How to read it: "quiet" are requests due before the first move, "moving" all later ones; the first move also loads
an adapter into the engine. Latency counts from the moment the request was due to its last byte. What was sent is
compared with what the store holds at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import sqlalchemy as sa
from common import Row, at_least, child, exactly, first_line, machine_facts, options_of, random_adapter, report, tell

from nightschool.models.base import BaseModel, load_base
from nightschool.models.fetch import find_model
from nightschool.models.lora import ALL_LINEAR, LoraModel
from nightschool.releases import aliases
from nightschool.releases.adapters import install_adapter
from nightschool.releases.manifest import Manifest, template_digest, tokenizer_digest
from nightschool.store import schema
from nightschool.store.database import Store

MODEL, AGENT, BY = "smollm2-135m", "shop", "benchmarks/swap.py"
GRACE_S = 0.3  # how old the gateway's copy of the alias may be, and its way there
MOVE_EVERY_S = 5.0
QUIET_S = 10.0
WARM_UP_S = 5.0
REQUEST_S = 120.0
REPLY_TOKENS = 12
TOPICS = ("a parcel", "an invoice", "a broken lamp", "a refund", "opening hours", "a missing screw", "a voucher")


@dataclass(frozen=True, slots=True)
class Call:
    """One request. Units: seconds of the event loop's clock. `failure` is `None` for a whole answer."""

    due: float
    started: float
    ended: float
    policy: str | None
    failure: str | None


@dataclass(frozen=True, slots=True)
class Move:
    """The alias points to `digest` from some moment between `begun` and `done` on."""

    digest: str
    begun: float
    done: float


@dataclass(slots=True)
class Client:
    """Sends chats to the gateway and keeps what came of them."""

    session: aiohttp.ClientSession
    calls: list[Call] = field(default_factory=list)
    number: int = 0

    async def ask(self, due: float) -> None:
        """One short chat, every second one streamed."""
        loop = asyncio.get_running_loop()
        self.number += 1
        stream = self.number % 2 == 0
        question = f"Customer {self.number} asks about {TOPICS[self.number % len(TOPICS)]}. Answer in one sentence."
        messages = [{"role": "system", "content": "You work for a shop."}, {"role": "user", "content": question}]
        body = {"model": AGENT, "messages": messages, "max_tokens": REPLY_TOKENS, "stream": stream}
        started, policy = loop.time(), None
        try:
            async with self.session.post("/v1/chat/completions", json=body) as response:
                policy = response.headers.get("x-nightschool-policy")
                failure = fault(response.status, await response.read(), stream)
        except (aiohttp.ClientError, TimeoutError) as error:
            failure = f"{type(error).__name__}: {error}"
        self.calls.append(Call(due, started, loop.time(), policy, failure))


def fault(status: int, raw: bytes, stream: bool) -> str | None:
    """Why a reply is no whole answer; `None` when it is one."""
    if status != 200:
        return f"{status}: {raw[:300].decode('utf-8', 'replace')}"
    if not stream:
        return None if json.loads(raw)["choices"][0]["finish_reason"] else "no finish reason"
    events = [line[6:] for line in raw.splitlines() if line.startswith(b"data: ")]
    if not events or events[-1] != b"[DONE]":
        return "the stream was cut"
    return next((str(piece["error"]) for piece in map(json.loads, events[:-1]) if "error" in piece), None)


async def closed_loop(client: Client, parallel: int, seconds: float) -> float:
    """Requests answered per second, once warm, when `parallel` clients each ask again as soon as answered."""
    loop = asyncio.get_running_loop()
    begun = loop.time() + WARM_UP_S
    ended = begun + seconds

    async def asks() -> None:
        while loop.time() < ended:
            await client.ask(loop.time())

    await asyncio.gather(*(asks() for _ in range(parallel)))
    return sum(begun < call.ended <= ended for call in client.calls) / seconds


async def open_loop(client: Client, rate: float, seconds: float, seed: int) -> None:
    """Requests that start at random moments, `rate` a second on average."""
    loop = asyncio.get_running_loop()
    random = np.random.default_rng(seed)
    due = loop.time()
    until = due + seconds
    asked: list[asyncio.Task[None]] = []
    while (due := due + random.exponential(1 / rate)) < until:
        await asyncio.sleep(max(0.0, due - loop.time()))
        asked.append(asyncio.create_task(client.ask(due)))
    await asyncio.gather(*asked)


async def move_to_and_fro(store: Store, second: str, until: float) -> list[Move]:
    """Promote the second adapter and roll back to the first, again and again."""
    loop = asyncio.get_running_loop()
    moves: list[Move] = []
    await asyncio.sleep(QUIET_S)
    while loop.time() < until:
        begun = loop.time()
        if len(moves) % 2 == 0:
            release = await asyncio.to_thread(
                aliases.promote, store, AGENT, second, by=BY, reason="the benchmark moves it", override=True
            )
        else:
            release = await asyncio.to_thread(aliases.roll_back, store, AGENT, BY)
        moves.append(Move(release.digest, begun, loop.time()))
        await asyncio.sleep(MOVE_EVERY_S)
    return moves


def expected(call: Call, first: str, moves: Sequence[Move]) -> set[str]:
    """The versions that may answer a call: the one in force `GRACE_S` before it started, and any that came since."""
    allowed = {first}
    for move in moves:
        if move.done <= call.started - GRACE_S:
            allowed = {move.digest}
        elif move.begun <= call.ended:
            allowed.add(move.digest)
    return allowed


def latency_row(name: str, calls: Sequence[Call]) -> Row:
    if not calls:
        return Row(name, "no requests")
    p50, p99 = np.percentile([1000 * (call.ended - call.due) for call in calls], [50, 99])
    return Row(name, f"p50 {p50:.0f} ms, p99 {p99:.0f} ms", note=f"{len(calls)} requests")


def install(store: Store, state: Path, base: BaseModel, scratch: Path, count: int = 2) -> list[str]:
    """Adapters with small random weights, installed as a training run would; their digests."""
    lora = LoraModel(base.network)
    digests = []
    for seed in range(count):
        folder = scratch / f"adapter-{seed}"
        random_adapter(folder, lora, seed)
        manifest = Manifest(
            agent=AGENT,
            base_digest=base.digest,
            tokenizer_digest=tokenizer_digest(base.folder),
            template_digest=template_digest(base.renderer),
            targets=ALL_LINEAR,
            parent_digest=None,
            dataset_digest=None,
            code_version="benchmark",
            run_id=None,
        )
        digests.append(install_adapter(store, state, folder, manifest))
    return digests


async def recorded(session: aiohttp.ClientSession) -> dict[str, int]:
    """The gateway's own count, once nothing waits to be stored."""
    while True:
        async with session.get("/health") as response:
            counts = (await response.json())["recording"]
        if not counts["queue"]:
            return counts
        await asyncio.sleep(0.1)


async def measure(
    url: str, store: Store, digests: Sequence[str], asked: argparse.Namespace
) -> tuple[list[Row], dict[str, Any]]:
    """Capacity, then the load with moves; the table and what is behind it."""
    timeout = aiohttp.ClientTimeout(REQUEST_S)
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        client = Client(session)
        tell("capacity")
        capacity = await closed_loop(client, asked.parallel, asked.capacity_seconds)
        rate = asked.share * capacity
        before = client.calls
        client.calls = []
        tell(f"load: {rate:.1f} requests/s")
        moving = move_to_and_fro(store, digests[1], asyncio.get_running_loop().time() + asked.seconds - GRACE_S)
        _, moves = await asyncio.gather(open_loop(client, rate, asked.seconds, asked.seed), moving)
        recording = await recorded(session)
    calls = client.calls
    failures = [call for call in (*before, *calls) if call.failure]
    for call in failures[:5]:
        tell(f"failed: {call.failure}")
    first_move = moves[0].begun if moves else float("inf")
    named = [call for call in calls if call.policy in digests]
    late = [call for call in named if call.policy not in expected(call, digests[0], moves)]
    certain = sum(len(expected(call, digests[0], moves)) == 1 for call in named)
    sent = len(before) + len(calls)
    rows = [
        Row("capacity", f"{capacity:.1f} requests/s", note=f"closed loop, {asked.parallel} in parallel"),
        Row("offered", f"{len(calls) / asked.seconds:.1f} requests/s", note=f"{asked.share:.0%} of it, open loop"),
        at_least("moves of the alias under load", len(moves), 3, f"every {MOVE_EVERY_S:g} s"),
        exactly("failed requests", len(failures), 0, f"of {sent}"),
        exactly("answers that do not name their version", len(calls) - len(named), 0, f"of {len(calls)}"),
        exactly("answers from a version that no longer served", len(late), 0, f"{certain} could have one version only"),
        exactly("exchanges that were not recorded", sent - recording["stored"], 0, f"of {sent}"),
        latency_row("latency, quiet", [call for call in calls if call.due < first_move]),
        latency_row("latency, moving", [call for call in calls if call.due >= first_move]),
    ]
    facts = {"capacity_per_s": capacity, "offered_per_s": rate, "moves": [asdict(move) for move in moves]}
    return rows, {**facts, "failures": [call.failure for call in failures], "calls": [asdict(call) for call in calls]}


def main() -> None:
    asked = options_of(__doc__, seconds=40.0, capacity_seconds=15.0, parallel=32, share=0.7, seed=0).parse_args()
    machine = machine_facts()
    folder = find_model(MODEL)
    with tempfile.TemporaryDirectory() as name:
        scratch, state = Path(name), Path(name) / "state"
        state.mkdir()
        with Store.open(state / "store.sqlite") as store:
            digests = install(store, state, load_base(folder), scratch)
            aliases.start(store, AGENT, digests[0], BY)
            words = ["-m", "nightschool", "up", "--agent", AGENT, "--model", str(folder), "--port", "0"]
            log = scratch / "up.log"
            with child([*words, "--state", str(state), "--json"], log) as up:
                tell("starting")
                url = json.loads(first_line(up, log))["data"]["gateway_url"]
                rows, facts = asyncio.run(measure(url, store, digests, asked))
            policies = versions_in(store)
    report("swap", asked, rows, machine, recorded=policies, **facts)


def versions_in(store: Store) -> dict[str, int]:
    """How many exchanges the store holds of each version."""
    t = schema.exchanges.c
    query = sa.select(t.policy_version, sa.func.count()).where(t.tenant == store.tenant).group_by(t.policy_version)
    with store.read() as conn:
        return {str(policy): int(count) for policy, count in conn.execute(query)}


if __name__ == "__main__":
    main()
