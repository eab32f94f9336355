import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from dashboard import states
from dashboard.recorded import recorded as fill_recorded
from starlette.applications import Starlette
from starlette.testclient import TestClient

from nightschool.dashboard.app import build_dashboard
from nightschool.store.database import Store
from nightschool.types import Json

FACTS = {"base_url": "http://127.0.0.1:8700/v1", "engine": "engine ready, 3 adapters", "lost": 0}
BUILDERS = {
    "empty": lambda _store, _now: {},
    "twelve": states.twelve_sessions,
    "waiting": states.waiting,
    "nights": states.two_nights,
    "hostile": states.hostile,
    "recorded": fill_recorded,
}


class State:
    """A filled store, what is in it, and a client that looks at it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.store = Store.open(folder / f"{name}.sqlite")
        self.now = time.time()
        self.ids: Json = BUILDERS[name](self.store, self.now) or {}
        self.app = Starlette(routes=build_dashboard(self.store, lambda: dict(FACTS)))
        self.client = TestClient(self.app, follow_redirects=False)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dashboard")


@pytest.fixture(scope="session")
def empty(folder: Path) -> Iterator[State]:
    yield from _state(folder, "empty")


@pytest.fixture(scope="session")
def twelve(folder: Path) -> Iterator[State]:
    yield from _state(folder, "twelve")


@pytest.fixture(scope="session")
def waiting(folder: Path) -> Iterator[State]:
    yield from _state(folder, "waiting")


@pytest.fixture(scope="session")
def nights(folder: Path) -> Iterator[State]:
    yield from _state(folder, "nights")


@pytest.fixture(scope="session")
def recorded(folder: Path) -> Iterator[State]:
    yield from _state(folder, "recorded")


@pytest.fixture(scope="session")
def hostile(folder: Path) -> Iterator[State]:
    yield from _state(folder, "hostile")


def _state(folder: Path, name: str) -> Iterator[State]:
    state = State(folder, name)
    yield state
    state.store.close()
