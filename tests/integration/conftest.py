"""A running Nightschool on a tiny model, reached as people reach it: by command line and by HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from patience import wait_until
from tiny import make_teachable_model
from up_process import LOOPBACK, Up

from nightschool.access.tokens import admin_token
from nightschool.cli.main import main
from nightschool.models.base import load_base
from nightschool.models.lora import ALL_LINEAR, LoraConfig, LoraModel, write_adapter
from nightschool.releases.adapters import install_adapter
from nightschool.releases.manifest import Manifest, template_digest, tokenizer_digest
from nightschool.rendering.renderer import Renderer
from nightschool.store.database import Store

PATIENCE_S = 60.0
OPEN_S = 250.0  # on a machine that does much else


@dataclass(frozen=True)
class Told:
    """What one command line did."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        return json.loads(self.out)


@dataclass(frozen=True)
class Reply:
    """One HTTP answer."""

    status: int
    headers: dict[str, str]
    body: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def exchange(self) -> str:
        return self.headers["x-nightschool-exchange"]

    @property
    def error(self) -> tuple[str, str, str]:
        """What, why, next."""
        error = self.json["error"]
        assert error["what"], self.body
        assert error["next"], self.body
        return error["what"], error["why"], error["next"]


@dataclass
class Shop:
    """One installation: its folder, its model and, once opened, its running process."""

    state: Path
    model: Path
    settings: Path
    up: Up | None = None
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def open(self) -> Up:
        """Start `nightschool up` and wait until it answers."""
        self.state.mkdir(parents=True, exist_ok=True)
        words = ("--model", str(self.model), "--agent", "shop", "--port", "0", "--config", str(self.settings))
        self.up = Up(self.state, *words)
        self.stack.callback(self.up.end)
        self.up.wait_ready(OPEN_S)
        return self.up

    def command(self, *words: str) -> dict[str, Any]:
        """One command in a process of its own; its JSON document."""
        line = [sys.executable, "-m", "nightschool", *words, "--json"]
        line += ["--state", str(self.state), "--config", str(self.settings)]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def send(self, path: str, body: bytes | dict[str, Any] | None = None, **headers: str) -> Reply:
        """GET `path`, or POST `body` to it, with the admin token."""
        assert self.up is not None
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        names = {"Content-Type": "application/json", "Authorization": f"Bearer {admin_token(self.state)}"}
        names |= {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(f"{self.up.running.gateway_url}{path}", data, names)
        try:
            with LOOPBACK.open(request, timeout=PATIENCE_S) as reply:
                return _reply(reply)
        except urllib.error.HTTPError as error:
            with error:
                return _reply(error)

    def chat(self, text: str = "to order", model: str = "shop", max_tokens: int = 3, **headers: str) -> Reply:
        messages = [{"role": "user", "content": text}]
        body = {"model": model, "messages": messages, "max_tokens": max_tokens}
        return self.send("/v1/chat/completions", body, **headers)

    def recorded(self, count: int) -> dict[str, int]:
        """The gateway's account, once `count` exchanges are stored or lost."""
        found: dict[str, int] = {}

        def settled() -> bool:
            found.update(self.send("/health").json["recording"])
            return not found["queue"] and found["stored"] + found["lost"] >= count

        wait_until(settled)
        return found

    @contextlib.contextmanager
    def store(self) -> Iterator[Store]:
        with Store.open(self.state / "store.sqlite") as store:
            yield store


def _reply(answer: Any) -> Reply:
    headers = {name.lower(): value for name, value in answer.headers.items()}
    return Reply(answer.status, headers, answer.read().decode())


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the caller's environment or folder counts."""
    for name in list(os.environ):
        if name.startswith("NIGHTSCHOOL_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_teachable_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def make_shop(tiny: Path) -> Iterator[Callable[..., Shop]]:
    """`make_shop(folder, settings)`; what it opens ends with the tests."""
    with contextlib.ExitStack() as stack:

        def make(folder: Path, settings: str = "") -> Shop:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / "nightschool.toml"
            path.write_text(f"model = {json.dumps(str(tiny))}\nagent = 'shop'\n{settings}")
            shop = Shop(folder / "state", tiny, path)
            stack.callback(shop.stack.close)
            return shop

        yield make


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Callable[..., Told]:
    """`run(shop, "status", "--json")`, in this process."""

    def call(shop: Shop, *words: str) -> Told:
        capfd.readouterr()
        code = main([*words, "--state", str(shop.state), "--config", str(shop.settings)])
        return Told(code, *capfd.readouterr())

    return call


@pytest.fixture(scope="session")
def add_adapter(tiny: Path) -> Callable[..., str]:
    """`add_adapter(shop, seed, base_digest=...)`: install an adapter, by default one that fits; its digest."""
    base = load_base(tiny, device="cpu")
    digests = {
        "base_digest": base.digest,
        "tokenizer_digest": tokenizer_digest(tiny),
        "template_digest": template_digest(Renderer.from_folder(tiny)),
    }
    lora = LoraModel(base.network)

    def add(shop: Shop, seed: int, **other: str) -> str:
        config = LoraConfig(rank=2, alpha=4)
        lora.create("made", config, seed=seed)
        folder = shop.state.parent / f"adapter-{seed}"
        write_adapter(folder, config, lora.tensors("made"), "tiny")
        lora.unload("made")
        facts = {**digests, "agent": "shop", "targets": ALL_LINEAR, "parent_digest": None, "dataset_digest": None}
        manifest = Manifest(**{**facts, "code_version": "test", "run_id": None, **other})
        with shop.store() as store:
            return install_adapter(store, shop.state, folder, manifest)

    return add
