"""A tiny model, schedulers driven turn by turn, and a real server on a loopback port."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
import uvicorn
from tiny import make_tiny_model
from transformers import AutoModelForCausalLM, PreTrainedModel

from nightschool.engine.runner import Runner
from nightschool.engine.sampling import Sampling
from nightschool.engine.scheduler import Done, Event, Request, Scheduler
from nightschool.engine.server import build_app
from nightschool.engine.service import Engine, Settings
from nightschool.models.base import load_base
from nightschool.models.lora import LoraConfig, LoraModel, write_adapter


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def reference(tiny: Path) -> PreTrainedModel:
    """The same weights in transformers' own classes and attention."""
    return AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def adapters(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two adapters, `one` and `two`, that change the model visibly."""
    root = tmp_path_factory.mktemp("adapters")
    lora = LoraModel(load_base(tiny, torch.float32, "cpu").network)
    for seed, name in enumerate(("one", "two")):
        config = LoraConfig(rank=4, alpha=8)
        lora.create(name, config, seed=seed)
        generator = torch.Generator().manual_seed(seed)
        for parameter in lora.parameters(name):
            parameter.data.normal_(0, 0.2, generator=generator)
        write_adapter(root / name, config, lora.tensors(name), "tiny")
    return root


@dataclass
class Desk:
    """A scheduler in float32 that the test turns by hand."""

    scheduler: Scheduler
    events: list[tuple[Request, Event]] = field(default_factory=list)

    @property
    def runner(self) -> Runner:
        return self.scheduler.runner

    def ask(self, prompt: list[int], adapter: str = "", n: int = 1, score: bool = False, **sampling: object) -> Request:
        request = Request(adapter, prompt, Sampling(**{"ignore_eos": True, **sampling}), n, stream=True, score=score)
        self.scheduler.submit(request)
        return request

    def turn(self, count: int = 1) -> None:
        with torch.inference_mode():
            for _ in range(count):
                self.scheduler.turn()

    def finish(self) -> None:
        self.turn()
        while self.scheduler.rows or self.scheduler.waiting:
            self.turn()

    def done(self, request: Request, choice: int = 0) -> Done:
        return next(e for r, e in self.events if r is request and isinstance(e, Done) and e.choice == choice)

    def tokens(self, request: Request, choice: int = 0) -> list[int]:
        return [token.id for token in self.done(request, choice).tokens]

    def logprobs(self, request: Request, choice: int = 0) -> list[float]:
        return [token.logprob for token in self.done(request, choice).tokens]


@pytest.fixture
def make_desk(tiny: Path) -> Callable[..., Desk]:
    def make(max_rows: int = 8, capacity: int = 512, kept_bytes: int = 1 << 20) -> Desk:
        events: list[tuple[Request, Event]] = []
        runner = Runner(load_base(tiny, torch.float32, "cpu"), max_rows, capacity)
        return Desk(Scheduler(runner, events.extend, frozenset({2}), kept_bytes), events)

    return make


@pytest.fixture
def desk(make_desk: Callable[..., Desk]) -> Desk:
    return make_desk()


@dataclass
class Served:
    url: str
    engine: Engine


@pytest.fixture
def serve(tiny: Path) -> Iterator[Callable[..., Served]]:
    """Starts real servers on free loopback ports; all end with the test."""
    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(**settings: object) -> Served:
        engine = Engine(load_base(tiny, torch.float32, "cpu"), Settings(**{"max_batch": 8, **settings}))
        listening = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(
            uvicorn.Config(build_app(engine), log_level="warning", ws="none", timeout_graceful_shutdown=1)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        running.append((server, thread))
        while not server.started:
            assert thread.is_alive()
            thread.join(0.01)
        return Served(f"http://127.0.0.1:{listening.getsockname()[1]}", engine)

    yield start
    for server, _ in running:
        server.should_exit = True
    for _, thread in running:
        thread.join(10)
        assert not thread.is_alive()
