"""Signals on the page of a session: where they are seen, on which branch, and as text."""

from __future__ import annotations

from pathlib import Path

from starlette.applications import Starlette
from starlette.testclient import TestClient
from traffic import record_turn

from nightschool.dashboard.app import build_dashboard
from nightschool.store.database import Store
from nightschool.store.exchanges import find_session
from nightschool.types import Json

NOW = 1_772_366_400.0


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def agent(text: str) -> Json:
    return {"role": "assistant", "content": text}


def test_signals_stand_on_the_messages_they_are_seen_in(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.sqlite") as store:
        asked = [user("Where is it?")]
        after = [*asked, agent("Which order?"), user("No, <b>that one</b>. You are useless.")]
        for at, (messages, reply) in enumerate(((asked, "Which order?"), (after, "I cannot say."), (after, "Gone."))):
            record_turn(store, messages, reply, (1,), None, session="s", user="ann", at=NOW + 60 * at)
        with store.read() as conn:
            session = find_session(conn, store.tenant, "s")
        client = TestClient(Starlette(routes=build_dashboard(store, lambda: {"base_url": "", "engine": "", "lost": 0})))
        data = client.get(f"/sessions/{session}.json").json()["data"]
        page = client.get(f"/sessions/{session}").text
        raw = client.get(f"/sessions/{session}.json?view=raw").json()["data"]
        # the first answer to the last message was gone back behind: its branch is not the one being read
        beside = client.get(f"/sessions/{session}.json?branch={data['branches'][1]['key'][:16]}").json()["data"]
    found = {signal["name"]: signal["value"] for signal in data["signals"]}
    # "No," sets right and negates; the last message was answered twice, the second answer is the main branch
    assert found == {"regenerate": 1, "correction": 1, "complaint": 1, "negation": 1}
    marks = {message["position"]: [mark["name"] for mark in message["signals"]] for message in data["messages"]}
    assert marks == {1: [], 2: [], 3: ["correction", "complaint", "negation"], 4: ["regenerate"]}
    assert data["messages"][3]["text"] == "Gone."
    other = {message["position"]: [mark["name"] for mark in message["signals"]] for message in beside["messages"]}
    assert (beside["messages"][3]["text"], other[4]) == ("I cannot say.", [])
    assert 'title="words of displeasure in replies of the user: useless"' in page
    assert "<b>that" not in page
    assert raw["signals"] == []
