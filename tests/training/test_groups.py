"""Groups from an engine over HTTP: rows as it sampled them, adapters that come and go, staleness that is corrected."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from fake_engine import PROMPT_IDS, FakeEngine, serve
from small_backend import small_backend
from tiny import make_tiny_model

from nightschool.engine.server import build_app
from nightschool.engine.service import Engine, Settings
from nightschool.errors import RefusedError, UpstreamError
from nightschool.models.base import load_base
from nightschool.objectives.clipping import BEHAVIOR
from nightschool.objectives.family import VARIANTS
from nightschool.objectives.off_policy import UNCORRECTED, WEIGHT
from nightschool.training.backend import AdamConfig, Identity
from nightschool.training.groups import Reply, Task, draw_groups, study_groups
from nightschool.training.handover import EngineHandover
from nightschool.training.local import LocalBackend
from nightschool.training.overlap import Batch, run_steps
from nightschool.types import Json, Sample
from nightschool.upstream.client import EngineClient

HELLO: tuple[Json, ...] = ({"role": "user", "content": "hello"},)
RULE = replace(VARIANTS["rloo_tis"], drop_equal=False)
FITS = Identity("a" * 64, "b" * 64, "c" * 64, ("q_proj",))


def task(number: int, **fields: object) -> Task:
    return Task(**{"id": f"t{number}", "messages": HELLO, "group_size": 2, "max_tokens": 8, "seed": number, **fields})


def drawn_from(engine: FakeEngine, tasks: Sequence[Task]) -> list[list[Reply]]:
    async def inside(url: str) -> list[list[Reply]]:
        async with EngineClient(url) as client:
            return await draw_groups(client, engine.base, tasks)

    with serve(engine.app()) as url:
        return asyncio.run(inside(url))


def test_replies_become_rows_with_what_the_engine_says_of_them():
    engine = FakeEngine()
    groups = drawn_from(engine, [task(0), task(1, temperature=0.7)])
    assert [[reply.sample.id for reply in group] for group in groups] == [["t0/0", "t0/1"], ["t1/0", "t1/1"]]
    choice = engine.reply({"model": engine.base, "logprobs": True, "return_token_ids": True})["choices"][0]
    sample = groups[1][0].sample
    count = len(choice["token_ids"])
    assert sample.token_ids == (*PROMPT_IDS, *choice["token_ids"])
    assert sample.completion_mask == sample.loss_mask == (False,) * 3 + (True,) * count
    told = [one["logprob"] for one in choice["logprobs"]["content"]]
    assert sample.token_annotations[BEHAVIOR] == (None, None, None, *told)
    assert (sample.policy_version, sample.group_id, sample.reward) == (engine.base, "t1", None)
    assert sample.annotations == {"temperature": 0.7, "truncated": 0.0}
    assert groups[1][0].message["content"] == "Hello ✓"
    asked = [json.loads(body) for body in engine.bodies]
    assert {(body["seed"], body["temperature"], body["n"], body["max_tokens"]) for body in asked} == {
        (0, 1.0, 2, 8), (1, 0.7, 2, 8),
    }  # fmt: skip


def test_an_engine_without_ids_is_refused():
    with pytest.raises(UpstreamError, match="no token ids"):
        drawn_from(FakeEngine(gives_ids=False), [task(0)])


def test_a_log_probability_that_is_missing_is_no_number():
    """Two tokens and one number: nobody knows whose it is."""
    (group,) = drawn_from(FakeEngine(logprobs_missing=1), [task(0)])
    assert group[0].sample.token_annotations[BEHAVIOR] == (None,) * 5


class OneBreaks:
    """A client whose request with seed 1 is refused while that with seed 0 is still waited for."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.dropped = False

    async def chat(self, body: bytes) -> NoReturn:
        if json.loads(body)["seed"] == 1:
            await self.begun.wait()
            raise UpstreamError("The engine broke.")
        self.begun.set()
        try:
            await asyncio.sleep(60.0)
        except asyncio.CancelledError:
            self.dropped = True
            raise
        raise AssertionError("nobody waits that long")


def test_an_error_ends_the_other_requests():
    async def inside() -> OneBreaks:
        client = OneBreaks()
        with pytest.raises(UpstreamError, match="broke"):
            await draw_groups(client, "v0", [task(0), task(1)])  # pyright: ignore[reportArgumentType]
        return client

    assert asyncio.run(inside()).dropped


@dataclass
class Weights:
    """The part of a backend that a handover uses: one number, written as an adapter."""

    number: int = 0
    identity: Identity = FITS

    def save_adapter(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "adapter_config.json").write_text('{"target_modules": ["q_proj"]}')
        (folder / "adapter_model.safetensors").write_bytes(bytes([self.number]))


def test_adapters_come_and_go_by_digest(tmp_path: Path):
    """Version 1 is never served: it goes from the folder with version 0, which leaves the engine when 2 has come."""
    engine = FakeEngine()

    async def inside(url: str) -> tuple[list[str], list[list[str]]]:
        async with EngineClient(url) as client:
            weights, seen = Weights(), []
            handover = EngineHandover(weights, client, tmp_path, "shop")  # pyright: ignore[reportArgumentType]
            names = [handover.save()]
            await handover.serve(names[0])
            names += [handover.save() for weights.number in (0, 1)]  # the second one is what the first one was
            seen.append(sorted(path.name for path in tmp_path.iterdir()))
            await handover.serve(names[2])
            await handover.serve(names[2])
            seen += [list(engine.adapters), [path.name for path in tmp_path.iterdir()]]
            await handover.close()
            return names, [*seen, list(engine.adapters)]

    with serve(engine.app()) as url:
        names, seen = asyncio.run(inside(url))
    assert len(set(names)) == 3
    assert seen == [sorted(names), [names[2]], [names[2]], []]
    assert engine.loads == [names[0], names[2]]
    assert json.loads((tmp_path / names[2] / "manifest.json").read_text())["parent_digest"] == names[1]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@dataclass
class Run:
    """A run against the embedded engine, and what was seen of it. Every version's adapter is kept in `copies`."""

    backend: LocalBackend
    copies: Path
    batches: list[Batch] = field(default_factory=list)
    loaded: list[tuple[str, ...]] = field(default_factory=list)
    studied: list[Sample] = field(default_factory=list)


@pytest.fixture
def play(tiny: Path, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    backend, adapters = small_backend(tiny), tmp_path / "adapters"
    adapters.mkdir()
    engine = Engine(load_base(tiny, torch.float32, "cpu"), Settings(adapters, capacity=256, max_batch=16))

    async def inside(url: str, num_steps: int, max_staleness: int) -> Run:
        run = Run(backend, tmp_path / "copies")
        async with EngineClient(url) as client:
            handover = EngineHandover(backend, client, adapters, "shop")
            save = handover.save

            def save_and_copy() -> str:
                name = save()
                backend.save_adapter(run.copies / name)
                return name

            handover.save = save_and_copy  # pyright: ignore[reportAttributeAccessIssue]

            async def draw(step: int, name: str) -> list[Sample]:
                run.loaded.append(await client.models())
                groups = await draw_groups(client, name, [task(10 * step + n, group_size=4) for n in range(3)])
                rows = [reply.sample for group in groups for reply in group]
                return [replace(one, reward=float(one.token_ids[-1] % 2)) for one in rows]

            def study(batch: Batch) -> None:
                run.batches.append(batch)
                study_groups(backend, RULE, AdamConfig(learning_rate=0.02), batch)

            await run_steps(draw, study, handover, num_steps, max_staleness)
            run.loaded.append(await client.models())
        return run

    with serve(build_app(engine)) as url:
        yield lambda *numbers: asyncio.run(inside(url, *numbers))


def scores(run: Run, name: str, samples: Sequence[Sample]) -> list[float]:
    run.backend.open(run.copies / name)
    return [x for row in run.backend.forward(samples) for x in row if x is not None]


def told(samples: Sequence[Sample]) -> list[float]:
    return [x for one in samples for x in one.token_annotations[BEHAVIOR] if x is not None]


@pytest.mark.parametrize("max_staleness", [0, 2])
def test_a_real_engine_draws_with_the_version_that_it_names(play: Callable[..., Run], max_staleness: int):
    """The engine's log-probabilities are those of the adapter a row names, and of no other one."""
    run = play(4, max_staleness)
    names = [batch.samples[0].policy_version or "" for batch in run.batches]
    assert [batch.step for batch in run.batches] == [0, 1, 2, 3]
    assert max(batch.staleness for batch in run.batches) <= max_staleness
    if max_staleness == 0:
        assert len(set(names)) == 4
    for batch, name in zip(run.batches, names, strict=True):
        assert told(batch.samples) == pytest.approx(scores(run, name, batch.samples), abs=1e-4)
    last = run.batches[-1].samples
    assert told(last) != pytest.approx(scores(run, names[0], last), abs=1e-2)  # the first version says something else
    assert [len(models) for models in run.loaded] == [2, 2, 2, 2, 1]  # the base and who draws; in the end the base
    assert run.loaded[0][1] == names[0]


def fresh_and_stale(tiny: Path) -> tuple[LocalBackend, list[Sample]]:
    """Two groups: what a policy said that the backend has moved away from, by a constant log-ratio of 0.3."""
    backend = small_backend(tiny)
    rows = [
        Sample(
            f"{n}", (5, 6, 7 + n % 2, 9), (False, True, True, True), (False, True, True, True),
            reward=float(n % 2), policy_version="v0", group_id=str(n // 2),
        )
        for n in range(4)
    ]  # fmt: skip
    behavior = [tuple(None if x is None else x - 0.3 for x in one) for one in backend.forward(rows)]
    return backend, [replace(a, token_annotations={BEHAVIOR: b}) for a, b in zip(rows, behavior, strict=True)]


def test_staleness_is_weighed(tiny: Path, monkeypatch: pytest.MonkeyPatch):
    """The anchor is 0.3 nats above who drew: every weight is exp(0.3) = 1.34986, below the cut at 2."""
    backend, rows = fresh_and_stale(tiny)
    seen: list[Sample] = []
    whole = backend.forward_backward
    monkeypatch.setattr(backend, "forward_backward", lambda rows, terms: seen.extend(rows) or whole(rows, terms))
    figures = study_groups(backend, RULE, AdamConfig(), Batch(0, tuple(rows), 1))
    assert figures["weight_mean"] == pytest.approx(1.349859, abs=1e-4)
    weights = [x for one in seen for x in one.token_annotations[WEIGHT] if x is not None]
    assert weights == pytest.approx([1.349859] * 12, abs=1e-4)
    assert backend.last_step is not None
    assert backend.last_step.applied


def test_staleness_that_nothing_corrects_is_refused(tiny: Path):
    backend, rows = fresh_and_stale(tiny)
    uncorrected = replace(RULE, correction=UNCORRECTED)
    with pytest.raises(RefusedError, match="staleness is corrected"):
        study_groups(backend, uncorrected, AdamConfig(), Batch(0, tuple(rows), 1))
    study_groups(backend, uncorrected, AdamConfig(), Batch(0, tuple(rows), 0))  # its own policy's rows need no weights
    bypassed = replace(uncorrected, clip=replace(RULE.clip, against=BEHAVIOR))
    study_groups(backend, bypassed, AdamConfig(), Batch(1, tuple(rows), 1))  # the ratio itself is to who drew
