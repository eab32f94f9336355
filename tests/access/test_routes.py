"""Every route with every kind of caller: generated from the routes of the built application.

A route without an expectation below fails, so nobody adds one without saying who may use it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import sqlalchemy as sa
from dashboard import states
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from nightschool.access.identity import Access
from nightschool.access.keys import KeyRing, NewKey, Role, add_key, revoke_key
from nightschool.dashboard.app import build_dashboard
from nightschool.gateway.app import build_app
from nightschool.gateway.hearing import OPEN_TO_PAGES
from nightschool.gateway.settings import GatewaySettings
from nightschool.store.database import Store
from nightschool.store.exchanges import insert_exchange
from nightschool.store.records import Caller, Record, Timing
from nightschool.store.schema import exchanges, feedback, runs, sessions, verdicts
from nightschool.upstream.client import EngineClient

SECRET = b"a secret of this installation"
HERE = "http://127.0.0.1:8700"
UNUSED = "http://127.0.0.1:9"  # nothing listens there; what gets past access is not answered by an engine

# Callers: `open` shows no key where none was made; `token` is the data token; the rest are keys of one tenant.
OPEN, NONE, UNKNOWN, REVOKED, DATA, FEEDBACK, ADMIN = "open", "none", "unknown", "revoked", "data", "feedback", "admin"
TOKEN, ADMIN_TOKEN = "token", "admin token"
CALLERS = (OPEN, NONE, UNKNOWN, REVOKED, DATA, FEEDBACK, ADMIN, TOKEN, ADMIN_TOKEN)
ANYBODY = frozenset(CALLERS)
AGENTS = frozenset({OPEN, DATA, ADMIN, TOKEN, ADMIN_TOKEN})
JUDGES = frozenset({DATA, FEEDBACK, ADMIN, TOKEN, ADMIN_TOKEN})
READERS = JUDGES | {OPEN}
LOOKERS = frozenset({OPEN, ADMIN, ADMIN_TOKEN})
DESK = frozenset({FEEDBACK, ADMIN, ADMIN_TOKEN})  # who may act in the inbox

EXPECTED = {
    ("POST", "/v1/chat/completions"): AGENTS,
    ("POST", "/v1/completions"): AGENTS,
    ("POST", "/v1/responses"): AGENTS,
    ("POST", "/v1/messages"): AGENTS,
    ("POST", "/v1/messages/count_tokens"): AGENTS,
    ("GET", "/v1/models"): AGENTS,
    ("POST", "/v1/feedback"): JUDGES,
    ("GET", "/v1/feedback"): READERS,
    ("POST", "/v1/feedback/tokens"): JUDGES,
    ("POST", "/v1/feedback/browser"): ANYBODY,  # who has a token in the body
    ("OPTIONS", "/v1/feedback/browser"): ANYBODY,
    ("POST", "/v1/webhooks/{name}"): ANYBODY,  # what its sender signed
    ("POST", "/v1/logs"): JUDGES,
    ("GET", "/health"): ANYBODY,
    ("GET", "/openapi.json"): ANYBODY,
    ("GET", "/static/{name}"): ANYBODY,
    **{
        ("GET", f"{path}{form}"): LOOKERS
        for form in ("", ".json")
        for path in (
            "/agents/{agent:path}", "/sessions", "/sessions/{id}", "/ledger", "/imports", "/keys", "/runs",
            "/runs/{id}", "/releases", "/verdicts/{id}",
        )
    },
    **{("GET", path): LOOKERS | DESK for path in ("/feedback", "/feedback.json", "/feedback.csv")},
    **{("GET", f"/feedback/{{id}}{form}"): LOOKERS | DESK for form in ("", ".json")},
    ("POST", "/feedback/{id}/{act}"): DESK,
    ("GET", "/sign-in"): DESK,
    ("GET", "/"): LOOKERS,
    ("GET", "/index.json"): LOOKERS,
    ("GET", "/exchanges/{id}"): LOOKERS,
    ("GET", "/exchanges/{id}/{part:str}.txt"): LOOKERS,
    ("GET", "/{name}"): LOOKERS,
}  # fmt: skip


@dataclass(frozen=True)
class House:
    """A gateway with a dashboard and tenants `acme` (two nights of work) and `other` (nothing)."""

    store: Store
    app: Starlette
    client: TestClient
    keys: dict[str, str]
    strangers: dict[str, str]  # keys of the other tenant
    places: dict[str, str]  # a path's parameters, filled with what acme has

    def ask(self, method: str, path: str, key: str | None = None, **more) -> tuple[int, str]:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        content = b"{}" if method == "POST" else None
        reply = self.client.request(method, path, content=content, headers=headers | more.pop("headers", {}), **more)
        return reply.status_code, reply.text

    def path(self, template: str) -> str:
        """The address of something of acme's."""
        kind = template.split("/")[1]
        filled = template.replace("{agent:path}", states.AGENT).replace("{part:str}", "request")
        filled = filled.replace("{act}", "accept").replace("{name}", "style.css")
        return filled.replace("{id}", self.places.get(kind, ""))


def _app(store: Store, access: Access, folder) -> Starlette:
    settings = GatewaySettings(state=folder, agent="assistant", access=access)
    return build_app(store, EngineClient(UNUSED), settings, build_dashboard(store, dict))


@pytest.fixture(scope="module")
def house(tmp_path_factory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("house")
    with Store.open(folder / "store.sqlite") as store:
        acme, other = store.scoped("acme"), store.scoped("other")
        states.two_nights(acme, time.time())
        keys = {role: add_key(acme, SECRET, NewKey(role, Role(role)), "me")[1] for role in (DATA, FEEDBACK, ADMIN)}
        strangers = {role: add_key(other, SECRET, NewKey(role, Role(role)), "me")[1] for role in keys}
        keys[REVOKED] = add_key(acme, SECRET, NewKey(REVOKED, Role.ADMIN), "me")[1]
        revoke_key(acme, REVOKED, "me")
        keys |= {UNKNOWN: "ns-admin-" + "x" * 43, TOKEN: "the-data-token", ADMIN_TOKEN: "the-admin-token"}
        places = {}
        with store.read() as conn:
            for kind, table in (
                ("sessions", sessions),
                ("exchanges", exchanges),
                ("runs", runs),
                ("verdicts", verdicts),
                ("feedback", feedback),
            ):
                places[kind] = conn.scalar(sa.select(table.c.id).where(table.c.tenant == "acme").limit(1))
        app = _app(store, Access("the-admin-token", "the-data-token", KeyRing(store, SECRET)), folder)
        with TestClient(app, HERE, client=("127.0.0.1", 5000), follow_redirects=False) as client:
            yield House(store, app, client, keys, strangers, places)


@pytest.fixture(scope="module")
def open_client(tmp_path_factory) -> Iterator[TestClient]:
    """An installation on which nobody made a key."""
    folder = tmp_path_factory.mktemp("open")
    with Store.open(folder / "store.sqlite") as store:
        app = _app(store, Access("the-admin-token", None, KeyRing(store, SECRET)), folder)
        with TestClient(app, HERE, client=("127.0.0.1", 5000), follow_redirects=False) as client:
            yield client


def walk(app: Starlette) -> Iterator[tuple[str, str]]:
    """Every (method, path) that the application answers; HEAD goes with GET."""
    for route in app.routes:
        assert isinstance(route, Route), f"{route} is of a kind that this test cannot walk"
        yield from ((method, route.path) for method in route.methods or () if method != "HEAD")


def test_every_route_says_who_may_use_it(house):
    assert set(walk(house.app)) == set(EXPECTED)


@pytest.mark.parametrize("caller", CALLERS)
def test_every_route_with_every_caller(house, open_client, caller):
    wrong = []
    for (method, template), allowed in EXPECTED.items():
        path = house.path(template)
        if caller == OPEN:
            content = b"{}" if method == "POST" else None
            status = open_client.request(method, path, content=content).status_code
        else:
            status, _ = house.ask(method, path, house.keys.get(caller))
        if (status not in (401, 403)) != (caller in allowed):
            wrong.append(f"{method} {path}: {status}")
        if caller in (NONE, UNKNOWN, REVOKED) and caller not in allowed and status != 401:
            wrong.append(f"{method} {path}: {status} for nobody")
    assert wrong == []


@pytest.mark.parametrize("header", [{"host": "evil.example"}, {"origin": "https://evil.example"}])
def test_every_route_with_a_foreign_page(house, header):
    """Also with methods that no route has, and with the key of somebody who may do all."""
    methods = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
    paths = {house.path(template) for _, template in EXPECTED}
    paths -= set(OPEN_TO_PAGES) if "origin" in header else set()
    found = {(m, p): house.ask(m, p, house.keys[ADMIN], headers=header)[0] for m in methods for p in sorted(paths)}
    assert {where: status for where, status in found.items() if status != 403} == {}


def test_no_tenant_sees_another(house):
    """What its own admin finds at these addresses, another tenant's admin does not."""
    seen = []
    for (method, template), allowed in EXPECTED.items():
        if "{" not in template or allowed is not LOOKERS or template == "/{name}":
            continue
        path = house.path(template)
        own, text = house.ask(method, path, house.keys[ADMIN])
        status, told = house.ask(method, path, house.strangers[ADMIN])
        assert own in (200, 302), path
        if path.startswith("/agents/"):  # an agent of which this tenant has nothing, whatever it is called
            assert states.V3 in text
            assert states.V3 not in told
        elif status != 404 or states.AGENT in told:
            seen.append(f"{path}: {status}")
        assert text != told
    assert seen == []
    for path in ("/", "/index.json", "/v1/models"):
        assert states.AGENT in house.ask("GET", path, house.keys[ADMIN])[1], path
    acmes = (states.AGENT, states.V3, *house.places.values())
    for path in (path for (method, path), _ in EXPECTED.items() if method == "GET" and "{" not in path):
        told = house.ask("GET", path, house.strangers[ADMIN])[1]
        assert [word for word in acmes if word in told] == [], path


def test_keys_that_data_programs_hold_reach_their_tenant_alone(house):
    exchange_id = house.places["exchanges"]
    said = {"exchange": exchange_id, "kind": "thumb", "value": True}
    receipts = {}
    for name, keys in (("acme", house.keys), ("other", house.strangers)):
        headers = {"authorization": f"Bearer {keys[FEEDBACK]}"}
        body = {**said, "idempotency_key": "the same key"}
        receipts[name] = house.client.post("/v1/feedback", json=body, headers=headers)
    assert receipts["acme"].json()["state"] == "matched"
    assert receipts["other"].json()["state"] == "parked"
    query = {"params": {"exchange": exchange_id}}
    own = house.client.get("/v1/feedback", headers={"authorization": f"Bearer {house.keys[DATA]}"}, **query).json()
    other = house.client.get(
        "/v1/feedback", headers={"authorization": f"Bearer {house.strangers[DATA]}"}, **query
    ).json()
    assert receipts["acme"].json()["id"] in {item["id"] for item in own["feedback"]}
    assert {item["id"] for item in other["feedback"]} == {receipts["other"].json()["id"]}


def test_one_id_in_two_tenants_is_two_exchanges(house):
    """The same id, session, principal and words; each admin reads its own."""
    for tenant in ("acme", "other"):
        messages = ({"role": "user", "content": f"a word for {tenant}"},)
        record = Record("the-same", Caller("shop", session="s"), Timing(time.time()), "base", b"{}", messages=messages)
        house.store.scoped(tenant).write(lambda conn, t=tenant, r=record: insert_exchange(conn, t, r))
    for tenant, keys in (("acme", house.keys), ("other", house.strangers)):
        status, moved = house.ask("GET", "/exchanges/the-same", keys[ADMIN])
        assert status == 302
        location = house.client.get("/exchanges/the-same", headers={"authorization": f"Bearer {keys[ADMIN]}"}).headers[
            "location"
        ]
        _, text = house.ask("GET", location, keys[ADMIN])
        assert f"a word for {tenant}" in text
        assert f"a word for {'other' if tenant == 'acme' else 'acme'}" not in text + moved


def test_too_many_requests_are_told_when_to_come_back(house):
    _, text = add_key(house.store.scoped("acme"), SECRET, NewKey("busy", rate_per_minute=2), "me")
    house.app.state.access.keys.refresh()
    replies = [house.client.get("/v1/models", headers={"authorization": f"Bearer {text}"}) for _ in range(3)]
    assert [reply.status_code for reply in replies] == [200, 200, 429]
    assert 1 <= int(replies[2].headers["retry-after"]) <= 30
    assert replies[2].json()["error"]["code"] == "rate_limit_exceeded"
    assert house.client.get("/v1/models", headers={"x-api-key": house.keys[DATA]}).status_code == 200


def test_a_running_gateway_notices_a_revoked_key(house):
    key, text = add_key(house.store.scoped("acme"), SECRET, NewKey("brief"), "me")
    until = time.monotonic() + 10

    def status() -> int:
        return house.client.get("/v1/models", headers={"x-nightschool-key": text}).status_code

    while status() != 200 and time.monotonic() < until:
        time.sleep(0.05)
    assert status() == 200
    revoke_key(house.store.scoped("acme"), key.id, "me")
    while status() != 401 and time.monotonic() < until:
        time.sleep(0.05)
    assert status() == 401
