"""Two gateways, each a process with a state folder of its own, on one database: what a team behind a balancer runs."""

from __future__ import annotations

import http.client
import json
import signal
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
import sqlalchemy as sa
from fake_engine import FakeEngine, serve
from patience import wait_until
from up_process import LOOPBACK, Up

from nightschool.access.keys import NewKey, add_key
from nightschool.store.database import Store
from nightschool.store.schema import exchanges, feedback, sessions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PEOPLE, TURNS = 6, 4
SECRET = "a secret that both of them are given, as docs/access.md says"


class Pair:
    """Both gateways, the database between them, and a key that was made at one of them."""

    def __init__(self, ups: list[Up], url: str, key: str) -> None:
        self.ups = ups
        self.url = url
        self.key = key
        self.urls = [up.running.gateway_url for up in ups]  # also when one is dead

    def ask(self, gateway: int, path: str, body: Any, **headers: str) -> tuple[int, Any, dict[str, str]]:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}", **headers}
        request = urllib.request.Request(self.urls[gateway] + path, json.dumps(body).encode(), headers)
        try:
            with LOOPBACK.open(request, timeout=60) as reply:
                return reply.status, json.load(reply), dict(reply.headers)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error), {}

    def turn(self, gateway: int, history: list[Any]) -> str:
        """One more turn; the exchange's id."""
        status, reply, headers = self.ask(gateway, "/v1/chat/completions", {"model": "shop", "messages": history})
        assert status == 200, reply
        history += [reply["choices"][0]["message"], {"role": "user", "content": f"and {len(history)}?"}]
        return {name.lower(): value for name, value in headers.items()}["x-nightschool-exchange"]

    def wait_for_key(self) -> None:
        """Each of them looks for new keys once a second."""
        known = {"exchange": "?", "kind": "thumb", "value": True}
        for gateway in range(len(self.ups)):
            wait_until(lambda gateway=gateway: self.ask(gateway, "/v1/feedback", known)[0] == 202)

    def lost(self) -> list[int]:
        found = []
        for gateway, up in enumerate(self.ups):
            if up.process.poll() is None:
                with LOOPBACK.open(f"{self.urls[gateway]}/health", timeout=30) as reply:
                    found.append(json.load(reply)["recording"]["lost"])
        return found


@pytest.fixture
def pair(request, postgres, tmp_path, monkeypatch) -> Iterator[Pair]:
    """They start at once on a database without a table: one makes them, the other waits. The parameter: durability."""
    url = postgres.database()
    monkeypatch.setenv("NIGHTSCHOOL_STORE", url)
    monkeypatch.setenv("NIGHTSCHOOL_KEY_SECRET", SECRET)
    ups: list[Up] = []
    engine = FakeEngine(ids=(f"chatcmpl-{number}" for number in count()))
    with serve(engine.app()) as engine_url:
        try:
            for name in ("one", "two"):
                (tmp_path / name).mkdir()
                mode = getattr(request, "param", "reply_first")
                (tmp_path / name / "nightschool.toml").write_text(f'[gateway]\ndurability = "{mode}"\n')
                words = ("--engine", engine_url, "--agent", "shop", "--port", "0")
                ups.append(Up(tmp_path / name / "state", *words))
            for up in ups:
                up.wait_ready()
            with Store.open(url) as store:
                made = Pair(ups, url, add_key(store, SECRET.encode(), NewKey("bot"), "test")[1])
            made.wait_for_key()
            yield made
        finally:
            for up in ups:
                up.end()
    postgres.drop(url)


def converse(pair: Pair, number: int, stored: Callable[[str], bool]) -> list[str]:
    """A person's turns, each through the other gateway, each judged through the one that did not answer it."""
    history: list[Any] = [{"role": "user", "content": f"person {number}"}]
    ids = []
    for turn in range(TURNS):
        ids.append(pair.turn(turn % 2, history))
        judgement = {
            "exchange": ids[-1],
            "kind": "thumb",
            "value": turn % 2 == 0,
            "idempotency_key": f"{number}.{turn}",
        }
        for gateway in (1 - turn % 2, turn % 2):  # the second time as after a lost answer
            status, reply, _ = pair.ask(gateway, "/v1/feedback", judgement)
            assert status in (200, 202), reply
        wait_until(lambda: stored(ids[-1]))  # a person's next turn takes longer than a commit
    return ids


def in_threads(work: Callable[[int], Any]) -> list[Any]:
    results: list[Any] = [None] * PEOPLE

    def run(number: int) -> None:
        results[number] = work(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(PEOPLE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert None not in results
    return results


def test_a_session_goes_through_both_and_every_judgement_finds_it(pair):
    with Store.open(pair.url) as store:

        def stored(exchange_id: str) -> bool:
            with store.read() as conn:
                return conn.scalar(sa.select(exchanges.c.id).where(exchanges.c.id == exchange_id)) is not None

        people = in_threads(lambda number: converse(pair, number, stored))
        with store.read() as conn:
            rows = {row.id: row for row in conn.execute(sa.select(exchanges))}
            said = conn.execute(sa.select(feedback).where(feedback.c.target_id != "?")).all()
            counted = {row.id: row.num_exchanges for row in conn.execute(sa.select(sessions))}
    assert sorted(rows) == sorted(one for ids in people for one in ids)
    assert {row.status for row in rows.values()} == {"ok"}
    assert list(counted.values()) == [TURNS] * PEOPLE
    for ids in people:
        assert {rows[one].session_id for one in ids} == {rows[ids[0]].session_id}
        assert [rows[one].parent_exchange_id for one in ids] == [None, *ids[:-1]]
    assert Counter((row.exchange_id, row.state) for row in said) == {(one, "matched"): 1 for one in rows}
    assert pair.lost() == [0, 0]


@pytest.mark.parametrize("pair", ["before_reply"], indirect=True)
def test_one_is_killed_and_the_other_goes_on(pair):
    """What was answered under `before_reply` is there, by whichever of the two, and goes on where it was."""
    dead, over = threading.Event(), threading.Event()

    def person(number: int) -> list[tuple[bool, list[str]]]:
        """Conversations: whether the death of a gateway cut into it, and the exchanges that were answered."""
        talks: list[tuple[bool, list[str]]] = []
        while not over.is_set():
            history: list[Any] = [{"role": "user", "content": f"person {number}, talk {len(talks)}"}]
            ids: list[str] = []
            cut = False
            while len(ids) < TURNS:
                try:
                    ids.append(pair.turn(1 if dead.is_set() else (len(ids) + number) % 2, history))
                except (OSError, http.client.HTTPException):
                    assert dead.is_set()  # before the signal is sent
                    cut = True
            talks.append((cut, ids))
        return talks

    def kill() -> None:
        time.sleep(3)
        dead.set()
        pair.ups[0].process.send_signal(signal.SIGKILL)
        time.sleep(3)
        over.set()

    killer = threading.Thread(target=kill)
    killer.start()
    talks = [talk for talks in in_threads(person) for talk in talks]
    killer.join()
    assert pair.lost() == [0]
    assert pair.ups[1].stop() == 0
    with Store.open(pair.url) as store, store.read() as conn:
        rows = {row.id: row for row in conn.execute(sa.select(exchanges))}
        counted = {row.id: row.num_exchanges for row in conn.execute(sa.select(sessions))}
    assert [one for _, ids in talks for one in ids if one not in rows] == []
    whole = [ids for cut, ids in talks if not cut]
    assert len(whole) > PEOPLE
    for ids in whole:
        assert [rows[one].parent_exchange_id for one in ids] == [None, *ids[:-1]]
        assert counted[rows[ids[0]].session_id] == TURNS
    assert len(rows) - sum(len(ids) for _, ids in talks) <= PEOPLE  # stored, and killed before it was answered
