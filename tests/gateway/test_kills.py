"""The gateway is killed at its own named steps; what a client was told is compared with what the store has."""

from __future__ import annotations

import contextlib
import http.client
import json
from pathlib import Path

import pytest
import sqlalchemy as sa
from fake_engine import FakeEngine, serve
from gateway_process import gateway_process

from nightschool.store.database import Store
from nightschool.store.schema import exchanges

BODY = {"model": "shop", "messages": [{"role": "user", "content": "Hi"}]}


def ask(port: int, streamed: bool) -> bool:
    """Whether a whole reply came."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(BODY | {"stream": streamed}))
            raw = connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
    return b"[DONE]" in raw if streamed else bool(json.loads(raw)["choices"])


def replied_and_stored(tmp_path: Path, durability: str, point: str, streamed: bool) -> tuple[bool, int]:
    """One request to a gateway that is killed at `point`, or right after the reply where that is empty."""
    store = tmp_path / "store.sqlite"
    with (
        serve(FakeEngine().app()) as engine,
        gateway_process(tmp_path, store, engine, durability, point) as (gateway, port),
    ):
        replied = ask(port, streamed)
        if not point:
            gateway.kill()
        assert gateway.wait(20) != 0
    with Store.open(store) as opened, opened.read() as conn:
        assert conn.scalar(sa.text("PRAGMA integrity_check")) == "ok"
        rows = conn.execute(sa.select(exchanges.c.status)).all()
    assert all(row.status == "ok" for row in rows)
    return replied, len(rows)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("durability", "point", "outcome"),
    [
        ("before_reply", "", (True, 1)),
        ("before_reply", "recorder.derived", (False, 0)),
        ("before_reply", "gateway.kept", (False, 1)),
        ("reply_first", "recorder.derived", (True, 0)),  # what waits in the queue is what may be lost
    ],
)
def test_a_kill_loses_what_its_mode_says_and_no_more(tmp_path, durability, point, outcome, streamed):
    assert replied_and_stored(tmp_path, durability, point, streamed) == outcome
