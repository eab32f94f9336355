"""Fixtures: a gateway in front of each of the contracted engines, with a store of its own for each test."""

from __future__ import annotations

import contextlib
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from engines import Contracted
from patience import wait_until

from nightschool.access.identity import Access
from nightschool.gateway.app import build_app
from nightschool.gateway.settings import GatewaySettings
from nightschool.releases.adapters import install_adapter
from nightschool.releases.aliases import start
from nightschool.store.database import Store
from nightschool.store.exchanges import load_exchange
from nightschool.store.schema import exchanges
from nightschool.types import Exchange
from nightschool.upstream.client import EngineClient

ADMIN = "admin-secret"


@dataclass
class Front:
    """A gateway: `clerk` is answered by the taught adapter (release `digest`), `shop` by the base."""

    url: str
    store: Store
    state: Path
    engine: Contracted
    digest: str
    app: Any

    @contextlib.contextmanager
    def client(self, **options: Any) -> Iterator[openai.OpenAI]:
        with openai.OpenAI(base_url=f"{self.url}/v1", api_key=ADMIN, max_retries=0, **options) as client:
            yield client

    def recorded(self, count: int) -> list[Exchange]:
        """The stored exchanges in the order they began, of which there must be `count`."""
        wait_until(lambda: len(self._ids()) >= count and not self.app.state.recorder.counts()["queue"])
        with self.store.read() as conn:
            found = [load_exchange(conn, self.store.tenant, one) for one in self._ids()]
        assert len(found) == count
        return [exchange for exchange in found if exchange is not None]

    def _ids(self) -> list[str]:
        with self.store.read() as conn:
            return [row.id for row in conn.execute(exchanges.select().order_by(exchanges.c.id))]


@pytest.fixture
def front(engine: Contracted, tmp_path: Path) -> Iterator[Front]:
    from fake_engine import serve

    with Store.open(tmp_path / "store.sqlite") as store:
        digest = install_adapter(store, tmp_path, engine.lesson.adapter, engine.lesson.manifest)
        start(store, "clerk", digest, "test")
        settings = GatewaySettings(state=tmp_path, agent="shop", access=Access(ADMIN))
        app = build_app(store, EngineClient(engine.url), settings)
        with serve(app) as url:
            yield Front(url, store, tmp_path, engine, digest, app)
        _unload(engine.url)


def _unload(url: str) -> None:
    """Leave the engine as it was found: the next test's adapters lie in another folder."""
    import json

    with urllib.request.urlopen(f"{url}/v1/models", timeout=60) as reply:
        names = [card["id"] for card in json.load(reply)["data"] if card.get("parent")]
    for name in names:
        raw = json.dumps({"lora_name": name}).encode()
        request = urllib.request.Request(f"{url}/v1/unload_lora_adapter", raw, {"Content-Type": "application/json"})
        with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(request, timeout=60):
            pass
