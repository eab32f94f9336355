"""Files of other tools, and a store to take them into."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from nightschool.imports.report import Report
from nightschool.imports.taking import Wish, quiet, take
from nightschool.store import schema
from nightschool.store.database import Store
from nightschool.store.exchanges import session_exchanges
from nightschool.types import Exchange


@pytest.fixture
def data() -> Path:
    """The folder of real runs that lies outside the repository."""
    folder = os.environ.get("NIGHTSCHOOL_DATA")
    if not folder:
        pytest.skip("NIGHTSCHOOL_DATA names no folder of real runs")
    return Path(folder)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """`write("a.jsonl", record, record)`: a file with one JSON record a line."""

    def make(name: str, *records: Any) -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        return path

    return make


@pytest.fixture
def imported(store: Store) -> Callable[..., Report]:
    """`imported(path)` takes a file in; its report."""

    def run(path: Path, format: str | None = None, agent: str | None = None) -> Report:
        return take(path, Wish(format, agent, "assistant"), store, quiet)

    return run


@pytest.fixture
def sessions(store: Store) -> Callable[[], list[list[Exchange]]]:
    """All stored sessions, oldest first, each as its exchanges."""

    def load() -> list[list[Exchange]]:
        s = schema.sessions.c
        with store.read() as conn:
            ids = list(conn.scalars(sa.select(s.id).order_by(s.first_at, s.external_key)))
            return [session_exchanges(conn, store.tenant, session) for session in ids]

    return load


@pytest.fixture
def rows(store: Store) -> Callable[[str], list[Any]]:
    """All rows of a table."""

    def load(name: str) -> list[Any]:
        with store.read() as conn:
            return list(conn.execute(sa.select(schema.metadata.tables[name])).all())

    return load
