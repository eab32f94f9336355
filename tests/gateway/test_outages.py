"""A store that takes nothing for a while, under a gateway that goes on: a full disk, a database that is gone."""

from __future__ import annotations

import http.client
import json
import resource
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from fake_engine import FakeEngine, serve
from gateway_process import ADMIN, gateway_process
from patience import wait_until

from nightschool.store.database import Store
from nightschool.store.schema import exchanges, feedback

CHAT = {"model": "shop", "messages": [{"role": "user", "content": "Hi"}]}
HEADERS = {"Authorization": f"Bearer {ADMIN}"}


class Caller:
    """Asks a gateway, plain and streamed, and judges what it said."""

    def __init__(self, port: int) -> None:
        self.port = port

    def send(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, str], bytes]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(method, path, json.dumps(body) if body else None, HEADERS)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()

    def ask_twice(self) -> str:
        """A plain reply and a streamed one, both whole; the id of the latter."""
        status, headers, raw = self.send("POST", "/v1/chat/completions", CHAT)
        assert (status, json.loads(raw)["choices"][0]["message"]["content"]) == (200, "Hello ✓")
        status, headers, raw = self.send("POST", "/v1/chat/completions", CHAT | {"stream": True})
        assert (status, raw.endswith(b"data: [DONE]\n\n")) == (200, True)
        return headers["x-nightschool-exchange"]

    def judge(self, exchange: str, key: str) -> tuple[int, Any]:
        body = {"exchange": exchange, "kind": "text", "value": key, "idempotency_key": key}
        status, _, raw = self.send("POST", "/v1/feedback", body)
        return status, json.loads(raw)

    def recorded(self, stored: int, lost: int) -> str:
        """What `/health` calls itself, once it counts so many and nothing waits."""
        told: dict[str, Any] = {}

        def settled() -> bool:
            told.update(json.loads(self.send("GET", "/health")[2]))
            return told["recording"] == {"stored": stored, "lost": lost, "queue": 0}

        wait_until(settled)
        return told["status"]


class FullDisk:
    """While it lasts, the gateway's process may write only the first byte of any file."""

    def __init__(self, folder: Path) -> None:
        self.place = str(folder / "store.sqlite")

    def begin(self, process_id: int) -> None:
        resource.prlimit(process_id, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))

    def end(self, process_id: int) -> None:
        resource.prlimit(process_id, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


class ServerGone:
    """While it lasts, the Postgres database has thrown out whoever was connected, and takes nobody in."""

    def __init__(self, server: Any) -> None:
        self.place = server.database()
        self.server = server
        self.name = sa.make_url(self.place).database

    def begin(self, process_id: int) -> None:
        self._allow(False)
        with self.server.engine.connect() as conn:
            ending = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
            conn.exec_driver_sql(ending, (self.name,))

    def end(self, process_id: int) -> None:
        self._allow(True)

    def _allow(self, connections: bool) -> None:
        with self.server.engine.connect() as conn:
            conn.exec_driver_sql(f"ALTER DATABASE {self.name} ALLOW_CONNECTIONS {connections}")


@pytest.fixture(params=["full disk", pytest.param("server gone", marks=pytest.mark.slow)])
def outage(request, tmp_path) -> FullDisk | ServerGone:
    return FullDisk(tmp_path) if request.param == "full disk" else ServerGone(request.getfixturevalue("postgres"))


@pytest.mark.parametrize("durability", ["reply_first", "before_reply"])
def test_replies_go_on_feedback_is_refused_and_afterwards_everything_is_recorded_again(tmp_path, outage, durability):
    with (
        serve(FakeEngine().app()) as engine,
        gateway_process(tmp_path, outage.place, engine, durability) as (process, port),
    ):
        caller = Caller(port)
        first = caller.ask_twice()
        assert caller.recorded(stored=2, lost=0) == "ok"
        assert caller.judge(first, "before")[0] == 200

        outage.begin(process.pid)
        caller.ask_twice()
        caller.ask_twice()
        assert caller.recorded(stored=2, lost=4) == "degraded"
        status, answer = caller.judge(first, "meanwhile")
        assert (status, answer["error"]["code"]) == (503, "store_unavailable")
        assert answer["error"]["what"] == "Nothing was written."

        outage.end(process.pid)
        status, answer = caller.judge(first, "meanwhile")
        assert (status, answer["repeated"]) == (200, False)
        caller.ask_twice()
        assert caller.recorded(stored=4, lost=4) == "degraded"
    with Store.open(outage.place) as store, store.read() as conn:
        if store.engine.dialect.name == "sqlite":
            assert conn.scalar(sa.text("PRAGMA integrity_check")) == "ok"
        assert conn.scalar(sa.select(sa.func.count()).select_from(exchanges)) == 4
        assert sorted(conn.scalars(sa.select(feedback.c.value))) == ["before", "meanwhile"]
