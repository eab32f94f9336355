"""A command line in this process, and a store with two adapters."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from exam_harness import CANDIDATE, INCUMBENT
from tiny import make_tiny_model
from up_process import Up

from nightschool.cli.main import main
from nightschool.releases.aliases import start
from nightschool.store import schema
from nightschool.store.database import Store


@dataclass(frozen=True)
class Told:
    """What one command line did."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        return json.loads(self.out)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder of its own; nothing of the caller's environment or folder counts."""
    for name in list(os.environ):
        if name.startswith("NIGHTSCHOOL_") and name != "NIGHTSCHOOL_DATA":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "state"
    folder.mkdir()
    return folder


@pytest.fixture
def run(state: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Told]:
    """`run("status", "--json")` on the state folder, in this process."""

    def call(*words: str) -> Told:
        code = main([*words, "--state", str(state)])
        captured = capfd.readouterr()
        return Told(code, captured.out, captured.err)

    return call


@pytest.fixture
def store(state: Path) -> Iterator[Store]:
    """A store in which `shop` serves INCUMBENT and CANDIDATE is installed."""
    with Store.open(state / "store.sqlite") as opened:
        for digest in (INCUMBENT, CANDIDATE):
            row = {"digest": digest, "agent": "shop", "manifest": {}, "created_at": 1.0}
            opened.write(lambda conn, row=row: conn.execute(schema.adapters.insert().values(tenant="default", **row)))
        start(opened, "shop", INCUMBENT, by="test")
        yield opened


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def start_up(tiny: Path) -> Iterator[Callable[..., Up]]:
    """`start_up(state)`; every process is ended after the test."""
    with contextlib.ExitStack() as stack:

        def make(state: Path, *words: str, model: Path | str | None = None, **environment: str) -> Up:
            state.mkdir(exist_ok=True)
            up = Up(state, "--model", str(model or tiny), "--port", "0", *words, **environment)
            stack.callback(up.end)
            return up

        yield make
