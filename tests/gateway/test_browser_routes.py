import json
import time

import pytest
from databases import ON_BOTH
from gateway.test_feedback_routes import ASK, DATA, asked, listed, post

from nightschool.client import Client
from nightschool.errors import InputError, RefusedError
from nightschool.feedback import browser

DATABASES = ON_BOTH

PAGE = {"Origin": "https://shop.example", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}


def send(gateway, token: str, kind: str, value, headers: dict[str, str] | None = None):
    body = json.dumps({"token": token, "kind": kind, "value": value}).encode()
    status, found, reply = gateway.send("POST", "/v1/feedback/browser", body, PAGE | (headers or {}))
    assert found["access-control-allow-origin"] == "*", "the page must be able to read every answer"
    return status, json.loads(reply)


def test_a_page_sends_a_thumb_and_a_text_without_a_key(gateway):
    exchange = asked(gateway)
    token = Client(gateway.url, gateway.admin).browser_token(exchange=exchange, author="visitor-7")
    assert send(gateway, token, "thumb", "up")[0] == 200
    assert send(gateway, token, "thumb", "down", {"Content-Type": "text/plain"})[1]["exchange"] == exchange
    assert send(gateway, token, "text", "It was wrong.")[0] == 200
    rows = listed(gateway, f"exchange={exchange}")
    assert [(r["kind"], r["value"], r["author"], r["source"], r["origin"]) for r in rows if r["current"]] == [
        ("thumb", False, "visitor-7", "end_user", "browser"),
        ("text", "It was wrong.", "visitor-7", "end_user", "browser"),
    ]


def test_a_token_may_come_before_its_exchange_is_stored(gateway):
    token = Client(gateway.url, gateway.admin).browser_token(session="s1")
    assert send(gateway, token, "thumb", True)[0] == 202
    exchange = asked(gateway, Session="s1")
    [row] = listed(gateway, "session=s1")
    assert (row["state"], row["session_id"]) == ("matched", gateway.recorded(exchange).session_id)


def test_what_a_token_does_not_allow(gateway, monkeypatch):
    client = Client(gateway.url, gateway.admin)
    token = client.browser_token(session="s1", expires_in_s=60)
    for kind, value in (("outcome", True), ("number", 1), ("thumb", None), ("text", "")):
        assert send(gateway, token, kind, value)[0] == 400
    # One changed character anywhere, another's signature, no token at all.
    other = client.browser_token(session="s2")
    forged = [".".join([*other.split(".")[:2], token.split(".")[2]]), token + "A", "nsb1.e30.AA", "x"]
    forged += [token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :] for place in (0, 9, -10)]
    for wrong in forged:
        status, reply = send(gateway, wrong, "thumb", True)
        assert (status, reply["error"]["code"]) == (403, "refused")
    now = time.time()
    monkeypatch.setattr("nightschool.gateway.browser_routes.time.time", lambda: now + 61)
    status, reply = send(gateway, token, "thumb", True)
    assert (status, reply["error"]["why"]) == (403, "It has expired.")
    assert listed(gateway, "state=parked") == []


def test_a_token_is_good_for_a_few_judgements(gateway, monkeypatch):
    monkeypatch.setattr(browser, "MAX_PER_TOKEN", 3)
    token = Client(gateway.url, gateway.admin).browser_token(session="s1")
    assert [send(gateway, token, "text", f"say {n}")[0] for n in range(4)] == [202, 202, 202, 403]


def test_minting_needs_a_key_and_stays_short(gateway):
    client = Client(gateway.url, gateway.admin)
    with pytest.raises(RefusedError):
        Client(gateway.url, "wrong").browser_token(session="s1")
    for about in ({}, {"session": "s", "exchange": "e"}):
        with pytest.raises(InputError):
            client.browser_token(**about)
    with pytest.raises(InputError):
        client.browser_token(session="s1", expires_in_s=browser.LONGEST_S + 1)
    # A key for pages is none for anything else.
    token = client.browser_token(session="s1")
    assert post(gateway, {"session": "s1", "kind": "thumb", "value": True}, token)[0] == 401


def test_other_origins_reach_that_route_alone(gateway):
    status, found, _ = gateway.send("OPTIONS", "/v1/feedback/browser", None, PAGE)
    assert (status, found["access-control-allow-methods"]) == (204, "POST")
    for method, path in (("OPTIONS", "/v1/feedback"), ("POST", "/v1/feedback"), ("POST", "/v1/feedback/tokens")):
        status, found, _ = gateway.send(method, path, b"{}", PAGE | {"Authorization": f"Bearer {gateway.admin}"})
        assert status == 403
        assert "access-control-allow-origin" not in found
    # The Host is checked here as well: a name that was pointed at this machine is not one of ours.
    assert gateway.send("POST", "/v1/feedback/browser", b"{}", PAGE | {"Host": "evil.example"})[0] == 403


def test_pages_do_not_judge_exams(open_gateway):
    from nightschool.store import schema

    gateway = open_gateway(data_token=DATA)
    row = {"tenant": "default", "id": "x1", "agent": "shop", "candidate": "base", "incumbent": "base"}
    row |= {"rule": {}, "state": "open", "opened_at": 1.0}
    gateway.store.write(lambda conn: conn.execute(schema.exams.insert(), row))
    headers = {"X-Nightschool-Exam": "x1", "Authorization": f"Bearer {gateway.admin}"}
    exchange = gateway.chat(ASK | {"model": "shop@base"}, headers)[1]["x-nightschool-exchange"]
    gateway.recorded(exchange)
    token = Client(gateway.url, gateway.admin).browser_token(exchange=exchange)
    assert send(gateway, token, "thumb", True)[0] == 403
