from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import openai
import pytest
from fake_engine import FakeEngine, serve
from fake_provider import FakeProvider

from nightschool.access.identity import Access
from nightschool.gateway.app import build_app
from nightschool.gateway.settings import GatewaySettings
from nightschool.releases.adapters import install_adapter
from nightschool.releases.manifest import Manifest
from nightschool.store.database import Store
from nightschool.store.exchanges import find_exchange, load_exchange
from nightschool.store.schema import exchanges
from nightschool.types import Exchange
from nightschool.upstream.client import EngineClient
from nightschool.upstream.settings import UpstreamSettings

ADMIN = "admin-secret"
CONTENT_JSON = {"content-type": "application/json"}


@dataclass
class Gateway:
    """A running gateway, its store and the engine or provider behind it."""

    url: str
    engine: FakeEngine
    store: Store
    state: Path
    app: Any
    admin: str = ADMIN
    provider: FakeProvider = field(default_factory=FakeProvider)
    provider_url: str = ""

    def client(self, key: str = "any", **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, **options)

    def send(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None):
        """One plain HTTP request; returns status, headers (lower case) and body bytes."""
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=20)
        with contextlib.closing(connection):
            connection.request(method, path, body, CONTENT_JSON | (headers or {}))
            response = connection.getresponse()
            return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()

    def chat(self, body: dict | bytes, headers: dict[str, str] | None = None):
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.send("POST", "/v1/chat/completions", raw, headers)

    def recorded(self, key: str) -> Exchange:
        """The stored exchange known by `key`; it may be stored a moment after its reply was read."""
        until = time.monotonic() + 10
        while time.monotonic() < until:
            with self.store.read() as conn:
                found = find_exchange(conn, self.store.tenant, key)
                exchange = load_exchange(conn, self.store.tenant, found) if found else None
            if exchange is not None:
                return exchange
            time.sleep(0.01)
        raise AssertionError(f"{key} was never stored")

    def row(self, key: str) -> Any:
        """The stored row of one exchange, with what the value does not carry."""
        exchange_id = self.recorded(key).id
        with self.store.read() as conn:
            return conn.execute(exchanges.select().where(exchanges.c.id == exchange_id)).one()

    def ask(self, path: str, body: dict, headers: dict[str, str] | None = None):
        return self.send("POST", path, json.dumps(body).encode(), headers)

    def install(self, seed: int) -> str:
        """A servable adapter, other for each seed; its digest."""
        return make_adapter(self.store, self.state, seed)


def make_adapter(store: Store, state: Path, seed: int) -> str:
    folder = state / f"adapter-{seed}"
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"target_modules": ["q_proj"], "r": 4}))
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    raw = len(header).to_bytes(8, "little") + header + seed.to_bytes(2, "little") + b"\x00\x3f"
    (folder / "adapter_model.safetensors").write_bytes(raw)
    digest = "0" * 64
    return install_adapter(
        store, state, folder, Manifest("shop", digest, digest, digest, ("q_proj",), None, None, "1", None)
    )


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A module that says `DATABASES = ON_BOTH` has its gateways' stores on both."""
    if "place" in metafunc.fixturenames and hasattr(metafunc.module, "DATABASES"):
        metafunc.parametrize("place", metafunc.module.DATABASES, indirect=True)


@pytest.fixture
def place(request, new_place, tmp_path) -> Iterator[Path | str]:
    with new_place(getattr(request, "param", "sqlite"), tmp_path) as made:
        yield made


@pytest.fixture
def open_gateway(place, tmp_path, engine) -> Iterator[Callable[..., Gateway]]:
    """Start a gateway in front of the fake engine, with settings changed as the test says."""
    with contextlib.ExitStack() as stack:

        def start(engine_url: str | None = None, data_token: str | None = None, **changes: Any) -> Gateway:
            store = stack.enter_context(Store.open(place))
            url = engine_url or stack.enter_context(serve(engine.app()))
            settings = GatewaySettings(state=tmp_path, agent="shop", access=Access(ADMIN, data_token))
            app = build_app(store, EngineClient(url), replace(settings, **changes))
            return Gateway(stack.enter_context(serve(app)), engine, store, tmp_path, app)

        yield start


@pytest.fixture
def gateway(open_gateway) -> Gateway:
    return open_gateway()


@pytest.fixture
def provider_gateway(open_gateway) -> Iterator[Gateway]:
    """A gateway in front of a provider that speaks every dialect, with the callers' own keys."""
    provider = FakeProvider()
    with serve(provider.app()) as url:
        speaks = ("chat", "completions", "responses", "messages")
        upstream = UpstreamSettings(url, speaks, gives_tokens=False, any_model=True)
        gateway = open_gateway(engine_url=url, upstream=upstream)
        gateway.provider, gateway.provider_url = provider, url
        yield gateway
