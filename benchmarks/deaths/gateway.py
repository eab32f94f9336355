"""A gateway that is killed while agents talk through it and people judge what they were told.

Each round starts a gateway on the store that the one before it left, in one of the three modes, in front of an engine
without a model. Twelve clients talk to it through the `openai` package, plain and streamed in turn, and post feedback:
by an external key before its exchange exists, on the reply just read, and on an earlier one. The gateway dies at one of
`LATEST` or at a random instant. Feedback that got no answer is sent again to the next gateway.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
import openai
import sqlalchemy as sa
from common import Row, at_most, exactly

from deaths.worker import intact
from nightschool.errors import NightschoolError
from nightschool.store.bodies import get_body
from nightschool.store.database import Store
from nightschool.store.exchanges import load_exchange
from nightschool.store.schema import exchanges, feedback
from nightschool.types import Json

# Fail points, and the pass up to which a round lets its gateway live. A gateway commits once before it answers.
LATEST = {
    "gateway.replied": 60,
    "gateway.kept": 60,  # reached under `before_reply` alone
    "recorder.derived": 20,
    "exchange.written": 60,
    "store.before_commit": 60,
    "store.after_commit": 60,
    "feedback.written": 60,
}
EARLIEST = 3
ANY = ""
# Twenty rounds see each mode die at each of its steps once, and at random instants.
SCHEDULE = [("before_reply", point) for point in (*LATEST, ANY, ANY, ANY)]
SCHEDULE += [("reply_first", point) for point in (*LATEST, ANY, ANY, ANY) if point != "gateway.kept"]
SCHEDULE += [("none", ANY)]
STOPPED = "stopped"  # how the last gateway ends: it was asked to
MAY_LOSE = ("reply_first", "none")

CLIENTS = 12
TURNS = 4
ROUND_S = 180.0
LIFE_S = 1.0
# Clients may learn of two replies in another order than they were sent in; by so much at most.
ORDER_S = 0.1
TEXT = "Hello ✓"
GONE = (openai.APIConnectionError, httpx2.HTTPError, aiohttp.ClientError, ConnectionError)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a client holds in its hands. `at` is when its last byte had come, in seconds since the epoch."""

    exchange_id: str
    upstream_id: str
    messages: list[Json]
    mode: str
    at: float


@dataclass(slots=True)
class Told:
    """What clients were told by all gateways so far; `latest` by the last one. Feedback by its value and its body."""

    replies: dict[str, Reply] = field(default_factory=dict)
    latest: list[Reply] = field(default_factory=list)
    receipts: dict[str, str] = field(default_factory=dict)
    unanswered: dict[str, Json] = field(default_factory=dict)
    parked: int = 0
    num_sent_again: int = 0
    lost: dict[str, list[float]] = field(default_factory=lambda: {mode: [] for mode in MAY_LOSE})


def rounds(count: int, folder: Path, new_place: Any) -> tuple[list[Row], dict[str, Any]]:
    """Kill `count` gateways, stop one more. The rows, and how often which mode died where."""
    from fake_engine import FakeEngine, serve

    chance, told, found = random.Random(12), Told(), Counter[str]()
    place, schedule = new_place(folder, "store"), list(SCHEDULE)
    chance.shuffle(schedule)
    deaths: Counter[str] = Counter()
    with serve(FakeEngine(ids=map("chatcmpl-{}".format, itertools.count())).app()) as engine:
        for number, (mode, point) in zip(range(count), itertools.cycle(schedule), strict=False):
            died_at = one_round(place, folder, engine, (number, mode, point), told, chance)
            deaths[f"{mode}, {point or 'any instant'}"] += 1
            found += compare(place, told, died_at)
        died_at = one_round(place, folder, engine, (count, STOPPED, ANY), told, chance)
        found += compare(place, told, died_at)
    found["damaged"] += damaged_bodies(place) + (not healthy(place, folder))
    acknowledged = len(told.replies) + len(told.receipts)
    return report_rows(told, found, count), {"acknowledged": acknowledged, "deaths": deaths, "lost_s": told.lost}


def report_rows(told: Told, found: Counter[str], count: int) -> list[Row]:
    by_mode = Counter(reply.mode for reply in told.replies.values())
    by_mode += Counter({mode: len(ages) for mode, ages in told.lost.items()})
    notes = {
        "replies lost": f"of {by_mode['before_reply']} under before_reply, {count} gateways killed",
        "feedback lost": f"of {len(told.receipts)}, in all modes; {told.parked} came before their exchange was stored",
        "feedback doubled": f"{told.num_sent_again} were sent again, for want of an answer",
    }
    claims = ("replies lost", "exchanges doubled", "feedback lost", "feedback doubled", "feedback beside its exchange")
    claims += ("damaged", "lost, though a later reply is stored")
    rows = [exactly(f"gateway: {claim}", found[claim], 0, notes.get(claim, "")) for claim in claims]
    for mode, ages in told.lost.items():
        rows.append(Row(f"gateway: replies lost under {mode}", str(len(ages)), note=f"of {by_mode[mode]}"))
        name, oldest = f"gateway: oldest under {mode}, s before the death", max(ages, default=0.0)
        rows.append(at_most(name, oldest, 1.0) if mode == "reply_first" else Row(name, f"{oldest:.3g}"))
    return rows


def one_round(
    place: str, folder: Path, engine: str, what: tuple[int, str, str], told: Told, chance: random.Random
) -> float:
    """One gateway's life; when it ended."""
    from gateway_process import gateway_process

    number, mode, point = what
    fail_point = f"{point}@{chance.randint(EARLIEST, LATEST[point])}" if point else ""
    told.latest = []
    durability = "reply_first" if mode == STOPPED else mode
    with gateway_process(folder, place, engine, durability, fail_point) as (process, port):
        crowd = Crowd(f"http://127.0.0.1:{port}", f"r{number}", mode, told)
        life_s = None if point else chance.uniform(0.0, LIFE_S)
        code, died_at = asyncio.run(crowd.live(process, life_s))
    if code != (-signal.SIGTERM if mode == STOPPED else 137 if point else -signal.SIGKILL):
        raise RuntimeError(f"Round {number} ({mode}, {point}) ended with {code}.")
    return died_at


class Crowd:
    """The clients of one gateway, until it is gone."""

    def __init__(self, url: str, name: str, mode: str, told: Told) -> None:
        self.url, self.name, self.mode, self.told = url, name, mode, told

    async def live(self, process: subprocess.Popen[str], life_s: float | None) -> tuple[int, float]:
        """Talk until the process dies: `life_s` after the first reply, or by itself. Its exit code, and when."""
        from gateway_process import ADMIN

        async with (
            openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="any", max_retries=0) as self.agent,
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {ADMIN}"}) as self.people,
        ):
            dying = asyncio.create_task(asyncio.to_thread(wait_for_death, process))
            talks = asyncio.gather(self.send_again(), *(self.talk(number) for number in range(CLIENTS)))
            if self.mode == STOPPED:
                await talks
                process.terminate()
            elif life_s is not None:
                while not self.told.latest and not dying.done():
                    await asyncio.sleep(0.01)
                await asyncio.sleep(life_s)
                process.kill()
            ended = await dying
            await asyncio.wait_for(talks, ROUND_S)
        return ended

    async def talk(self, client: int) -> None:
        """One conversation after another; with a gateway that will be stopped, one alone."""
        try:
            for conversation in itertools.count():
                if self.mode == STOPPED and conversation:
                    return
                await self.converse(f"{self.name}-{client}-{conversation}")
        except GONE:
            return

    async def converse(self, name: str) -> None:
        messages: list[Json] = [{"role": "system", "content": "Answer. " * 40}]
        earlier: Reply | None = None
        for turn in range(TURNS):
            key = f"{name}-{turn}"
            messages = [*messages, {"role": "user", "content": f"Question {key}?"}]
            await self.judge(f"{key}-before", external_key=key)
            reply = await self.ask(key, messages, streamed=turn % 2 == 1)
            await self.judge(f"{key}-after", exchange=reply.exchange_id)
            if earlier is not None:
                await self.judge(f"{key}-later", exchange=earlier.exchange_id)
            messages, earlier = [*messages, {"role": "assistant", "content": TEXT}], reply

    async def ask(self, key: str, messages: list[Any], streamed: bool) -> Reply:
        headers = {"X-Nightschool-External-Key": key}
        raw = await self.agent.chat.completions.with_raw_response.create(
            model="shop", messages=messages, stream=streamed, extra_headers=headers
        )
        answer: Any = raw.parse()
        upstream_id = "" if streamed else answer.id
        if streamed:
            async for event in answer:
                upstream_id = event.id
        reply = Reply(raw.headers["x-nightschool-exchange"], upstream_id, messages, self.mode, time.time())
        self.told.replies[reply.exchange_id] = reply
        self.told.latest.append(reply)
        return reply

    async def judge(self, value: str, **target: str) -> None:
        await self.post({**target, "kind": "text", "value": value, "idempotency_key": value})

    async def post(self, body: Json) -> None:
        value = body["value"]
        self.told.unanswered[value] = body
        async with self.people.post(f"{self.url}/v1/feedback", json=body) as answer:
            receipt = await answer.json()
            if answer.status not in (200, 202):
                raise RuntimeError(f"Feedback was refused: {receipt}")
        del self.told.unanswered[value]
        self.told.receipts[value] = receipt["id"]
        self.told.parked += answer.status == 202

    async def send_again(self) -> None:
        """What the gateways before did not answer, whether or not they stored it."""
        self.told.num_sent_again += len(self.told.unanswered)
        try:
            await asyncio.gather(*map(self.post, list(self.told.unanswered.values())))
        except GONE:
            return


def wait_for_death(process: subprocess.Popen[str]) -> tuple[int, float]:
    return process.wait(ROUND_S), time.time()


def compare(place: str, told: Told, died_at: float) -> Counter[str]:
    """What is missing, doubled or broken now. What a mode may lose is noted, and no longer expected."""
    found: Counter[str] = Counter()
    with Store.open(place) as store, store.read() as conn:
        found["damaged"] += not intact(store)
        columns = (exchanges.c.id, exchanges.c.upstream_id, exchanges.c.external_key)
        rows = conn.execute(sa.select(*columns)).all()
        ids, by_key = {row.id for row in rows}, {row.external_key: row.id for row in rows}
        found["exchanges doubled"] += len(rows) - len({row.upstream_id for row in rows})
        newest = max((reply.at for reply in told.latest if reply.exchange_id in ids), default=0.0)
        for reply in told.latest:
            if reply.exchange_id in ids:
                found["damaged"] += not whole(conn, reply)
            elif reply.mode in MAY_LOSE:
                told.lost[reply.mode].append(died_at - reply.at)
                found["lost, though a later reply is stored"] += reply.at < newest - ORDER_S
                del told.replies[reply.exchange_id]
        found["replies lost"] += len(told.replies.keys() - ids)
        said = conn.execute(sa.select(feedback)).all()
        by_value = {row.value: row.id for row in said}
        found["feedback doubled"] += len(said) - len(by_value)
        found["feedback lost"] += sum(by_value.get(value) != receipt for value, receipt in told.receipts.items())
        for row in said:
            target = row.target_id if row.target_id in ids else by_key.get(row.target_id)
            found["feedback beside its exchange"] += row.exchange_id != target
    return found


def whole(conn: sa.Connection, reply: Reply) -> bool:
    """Whether the store holds what was asked and answered, parsed and as bytes."""
    exchange = load_exchange(conn, "default", reply.exchange_id)
    columns = (exchanges.c.request_body, exchanges.c.reply_body)
    asked, answered = conn.execute(sa.select(*columns).where(exchanges.c.id == reply.exchange_id)).one()
    try:
        body, raw = json.loads(get_body(conn, "default", asked)), get_body(conn, "default", answered)
    except NightschoolError:
        return False
    return (
        exchange is not None
        and exchange.status == "ok"
        and [choice.message.get("content") for choice in exchange.choices] == [TEXT]
        and list(exchange.messages) == body["messages"] == reply.messages
        and exchange.upstream_id == reply.upstream_id
        and reply.upstream_id.encode() in raw
    )


def damaged_bodies(place: str) -> int:
    """How many bodies of all that are stored cannot be restored."""
    damaged = 0
    with Store.open(place) as store, store.read() as conn:
        for bodies in conn.execute(sa.select(exchanges.c.request_body, exchanges.c.reply_body)).all():
            for body in bodies:
                try:
                    get_body(conn, "default", body)
                except NightschoolError:
                    damaged += 1
    return damaged


def healthy(place: str, folder: Path) -> bool:
    """What `nightschool doctor` says of the store."""
    where = {"NIGHTSCHOOL_STORE": place} if place.startswith("postgres") else {}
    words = [sys.executable, "-m", "nightschool", "--json", "doctor"]
    environment = {**os.environ, "NIGHTSCHOOL_STATE": str(folder), **where}
    told = json.loads(subprocess.run(words, env=environment, cwd=folder, capture_output=True).stdout)
    return [check["state"] for check in told["data"]["checks"] if check["name"] == "store"] == ["ok"]
