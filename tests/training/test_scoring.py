"""A teacher's scores: of a frozen base, an adapter, an engine over HTTP; kept, gone on with, refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import sqlalchemy as sa
from fake_engine import serve
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from tiny import make_tiny_model
from traffic import busy_day, fix_splits, record_turn

from nightschool.curation.replies import OTHER_TEMPERATURE
from nightschool.errors import InputError, InterruptedRun, RefusedError, UpstreamError
from nightschool.objectives.off_policy import ORIGIN
from nightschool.objectives.on_policy_distillation import TEACHER, OnPolicyRule
from nightschool.objectives.ppo import PpoRule
from nightschool.rendering.renderer import Renderer
from nightschool.store.database import Store
from nightschool.store.schema import ledger
from nightschool.training.backend import AdamConfig
from nightschool.training.drift import DriftRule
from nightschool.training.loop import LoopConfig
from nightschool.training.night import open_local, read_dataset, resume, study
from nightschool.training.plans import BackendConfig, Plan, ScorerConfig, StudyConfig
from nightschool.training.runs import run_folder
from nightschool.training.scoring import Kept, Scorers, Watching
from nightschool.training.watching import Halt, Silent
from nightschool.types import Sample, Sampler

NAME = "on_policy_distillation"


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("student"))


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other weights, the same tokenizer."""
    return make_tiny_model(tmp_path_factory.mktemp("teacher"), seed=3)


@pytest.fixture(scope="module")
def foreigner(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer of its own."""
    folder = tmp_path_factory.mktemp("foreigner")
    for path in teacher.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    told = json.loads((folder / "tokenizer.json").read_text())
    told["model"]["merges"].pop()
    (folder / "tokenizer.json").write_text(json.dumps(told))
    return folder


@pytest.fixture(scope="module")
def engine(teacher: Path) -> Iterator[str]:
    """The embedded engine with the teacher, over HTTP."""
    import torch

    from nightschool.engine.server import build_app
    from nightschool.engine.service import Engine, Settings
    from nightschool.models.base import load_base

    with serve(build_app(Engine(load_base(teacher, torch.float32, "cpu"), Settings(max_batch=4, capacity=512)))) as url:
        yield url


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store.sqlite") as opened:
        fix_splits(opened)
        busy_day(opened, 24)
        yield opened


def config(student: Path, **scorers: ScorerConfig) -> StudyConfig:
    return StudyConfig(
        OnPolicyRule(),
        backend=BackendConfig(model=str(student), dtype="float32", rank=4, alpha=8),
        loop=LoopConfig(epochs=4, batch_size=6, optimizer=AdamConfig(learning_rate=1e-2)),
        drift=DriftRule(kl_stop=500.0, kl_restore=500.0, min_labelled=1000),
        rehearsal_weight=0.0,
        **scorers,
    )


def rows(count: int = 20) -> list[Sample]:
    """Two replies in each, words of somebody else between them."""
    mask = (False, False, True, True, False, True)
    return [Sample(f"row {i}", (1, 20 + i, 30, 31, 40, 32), mask, mask) for i in range(count)]


def watching() -> Watching:
    return Watching(Silent(), Halt())


def scores_of(sample: Sample, name: str = TEACHER) -> list[float | None]:
    return list(sample.token_annotations[name])


def asked(student: Path, scorer: ScorerConfig, folder: Path, samples: Sequence[Sample]) -> tuple[Sample, ...]:
    scorers = Scorers.of(config(student, teacher=scorer), frozenset({TEACHER}), folder)
    return scorers.score(samples, folder, open_local, watching())


def test_a_base_and_an_engine_over_http_say_the_same(student: Path, teacher: Path, engine: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    local = asked(student, ScorerConfig(model=str(teacher)), tmp_path / "a", rows())
    distant = asked(student, ScorerConfig(url=engine), tmp_path / "b", rows())
    backend = open_local(BackendConfig(model=str(teacher), dtype="float32"))
    backend.open(None)
    for one, other, expected in zip(local, distant, backend.forward(rows()), strict=True):
        assert scores_of(one) == pytest.approx(list(expected), abs=1e-6)
        assert [x is None for x in scores_of(one)] == [not used for used in one.completion_mask]
        told = [(x, y) for x, y in zip(scores_of(one), scores_of(other), strict=True) if x is not None]
        assert [y for _, y in told] == pytest.approx([x for x, _ in told], abs=1e-4)
    own = open_local(BackendConfig(model=str(student), dtype="float32"))
    own.open(None)
    assert own.forward(rows()[:1])[0][2] != pytest.approx(scores_of(local[0])[2], abs=0.01), "another model"


def test_a_run_draws_the_policy_to_its_teacher(store: Store, student: Path, teacher: Path, tmp_path: Path) -> None:
    plan = config(student, teacher=ScorerConfig(model=str(teacher)))
    run = study(store, tmp_path, Plan("shop", NAME), plan)
    folder = run_folder(tmp_path, run.id)
    train = read_dataset(folder).train
    assert train
    assert all(TEACHER not in sample.token_annotations for sample in train), "scores lie beside the rows"
    kept = [json.loads(line) for line in (folder / f"{TEACHER}.jsonl").read_text().splitlines()]
    assert {one["id"] for one in kept} == {sample.id for sample in train}
    told = {one["id"]: one["logprobs"] for one in kept}
    backend = open_local(plan.backend)

    def away() -> float:
        """Mean squared distance of a token's log-probability to the teacher's."""
        said = backend.forward(train)
        return fmean(
            (mine - theirs) ** 2
            for sample, row in zip(train, said, strict=True)
            for mine, theirs in zip((x for x in row if x is not None), told[sample.id], strict=True)
        )

    backend.open(None)
    before = away()
    backend.open(tmp_path / "adapters" / str(run.adapter_digest))
    assert away() < 0.5 * before
    first = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
    backend.open(None)
    start = [x for row in backend.forward(train) for x in row if x is not None]
    theirs = [x for sample in train for x in told[sample.id]]
    assert first["teacher_kl"] == pytest.approx(fmean(start) - fmean(theirs), abs=1e-4)
    with store.read() as conn:
        trained = conn.scalars(sa.select(ledger.c.exchange_id).where(ledger.c.state == "trained")).all()
    assert len(trained) == 2 * len(train), "both turns of each session, judged or not"


def test_an_adapter_teaches_its_own_base(store: Store, student: Path, teacher: Path, tmp_path: Path) -> None:
    first = study(store, tmp_path, Plan("shop", NAME), config(student, teacher=ScorerConfig(model=str(teacher))))
    named = ScorerConfig(adapter=str(first.adapter_digest))
    (scored,) = asked(student, named, tmp_path, rows(1))
    backend = open_local(BackendConfig(model=str(student), dtype="float32"))
    backend.open(tmp_path / "adapters" / named.adapter)
    assert scores_of(scored) == pytest.approx(list(backend.forward(rows(1))[0]), abs=1e-6)


def test_another_tokenizer_is_refused_before_anything_is_chosen(
    store: Store, student: Path, foreigner: Path, tmp_path: Path
) -> None:
    with pytest.raises(RefusedError, match="share one tokenizer") as refused:
        study(store, tmp_path, Plan("shop", NAME), config(student, teacher=ScorerConfig(model=str(foreigner))))
    assert "mean nothing" in refused.value.why
    assert not list((tmp_path / "runs").glob("*")) if (tmp_path / "runs").exists() else True
    with pytest.raises(InputError, match="No teacher is named"):
        study(store, tmp_path, Plan("shop", NAME), config(student))


class Stub:
    """An engine that is asked for scores and leaves some out, or speaks of no tokenizer."""

    def __init__(self, renderer: Renderer, **health: Any) -> None:
        self.renderer = renderer
        self.health = health
        self.asked: list[list[int]] = []
        self.untold: int | None = None
        self.extra_id: list[int] = []

    def app(self) -> Starlette:
        routes = [
            Route("/health", self._health),
            Route("/v1/models", self._models),
            Route("/tokenize", self._tokenize, methods=["POST"]),
            Route("/v1/completions", self._score, methods=["POST"]),
        ]
        return Starlette(routes=routes)

    async def _health(self, _request: Request) -> JSONResponse:
        return JSONResponse(self.health)

    async def _models(self, _request: Request) -> JSONResponse:
        return JSONResponse({"data": [{"id": "stub"}]})

    async def _tokenize(self, request: Request) -> JSONResponse:
        text = (await request.json())["prompt"]
        ids = self.renderer.tokenizer.encode(text, add_special_tokens=False).ids
        return JSONResponse({"tokens": [*self.extra_id, *ids]})

    async def _score(self, request: Request) -> JSONResponse:
        ids = (await request.json())["prompt"]
        self.asked.append(ids)
        scores = [None if place == 0 else {str(token): {"logprob": -1.0}} for place, token in enumerate(ids)]
        if self.untold is not None:
            scores[self.untold] = None
        return JSONResponse({"choices": [{"prompt_logprobs": scores}]})


def test_an_engine_that_does_not_tell_its_tokenizer_is_tried(student: Path, foreigner: Path, tmp_path: Path) -> None:
    stub = Stub(Renderer.from_folder(student))
    with serve(stub.app()) as url:
        with pytest.raises(RefusedError, match="is not known"):
            asked(student, ScorerConfig(url=url), tmp_path, rows(2))
        declared = ScorerConfig(url=url, tokenizer=str(student))
        with pytest.raises(RefusedError, match="share one tokenizer"):
            asked(student, replace(declared, tokenizer=str(foreigner)), tmp_path, rows(2))
        assert scores_of(asked(student, declared, tmp_path, rows(2))[0]) == [None, None, -1.0, -1.0, None, -1.0]
        stub.extra_id = [1]
        with pytest.raises(RefusedError, match="another tokenizer than"):
            asked(student, declared, tmp_path / "x", rows(2))


def test_a_token_without_a_score_is_no_number(student: Path, tmp_path: Path) -> None:
    stub = Stub(Renderer.from_folder(student))
    stub.untold = 5
    with serve(stub.app()) as url, pytest.raises(UpstreamError, match="was not scored"):
        asked(student, ScorerConfig(url=url, tokenizer=str(student)), tmp_path, rows(2))
    assert (tmp_path / f"{TEACHER}.jsonl").read_text() == ""


def test_what_was_scored_is_not_asked_again(tmp_path: Path) -> None:
    samples, calls = rows(40), []

    def score(part: Sequence[Sample]) -> list[tuple[float, ...]]:
        calls.append([sample.id for sample in part])
        return [(-1.0, -2.0, -3.0)] * len(part)

    class Stops(Silent):
        def rows(self, done: int, total: int) -> None:
            watch.halt.requested = done >= 32
            seen.append((done, total))

    seen: list[tuple[int, int]] = []
    watch = Watching(Stops(), Halt())
    path = tmp_path / "scores.jsonl"
    with pytest.raises(InterruptedRun):
        Kept(path, samples).fill(score, watch)
    assert seen == [(16, 40), (32, 40)]
    with path.open("a") as handle:
        handle.write('{"id": "row 32", "logpr')  # a kill in the middle of a line
    again = Kept(path, samples)
    assert [sample.id for sample in again.missing] == [f"row {i}" for i in range(32, 40)]
    again.fill(score, watching())
    assert calls[2:] == [[f"row {i}" for i in range(32, 40)]]
    assert Kept(path, samples).missing == []
    assert scores_of(again.annotated(samples[35], TEACHER)) == [None, None, -1.0, -2.0, None, -3.0]


def test_a_run_that_failed_over_its_engine_is_resumed(store: Store, student: Path, tmp_path: Path) -> None:
    stub = Stub(Renderer.from_folder(student))
    with serve(stub.app()) as url:
        stub.untold = 36  # the first token that was sampled stands behind 35 others
        named = ScorerConfig(url=url, tokenizer=str(student))
        with pytest.raises(UpstreamError):
            study(store, tmp_path, Plan("shop", NAME), config(student, teacher=named))
        (run_id,) = [folder.name for folder in (tmp_path / "runs").iterdir()]
        stub.untold = None
        assert resume(store, tmp_path, run_id).state == "done"


def test_rows_of_another_temperature_are_held_where_an_engine_teaches(
    store: Store, student: Path, engine: str, tmp_path: Path
) -> None:
    cool = record_turn(
        store, [{"role": "user", "content": "hi"}], "a", (20, 21), (7, 2), session="cool", user="user-0-1",
        sampler=Sampler(temperature=0.5),
    )  # fmt: skip
    run = study(store, tmp_path, Plan("shop", NAME), config(student, teacher=ScorerConfig(url=engine)))
    with store.read() as conn:
        found = {row.exchange_id: (row.state, row.reason) for row in conn.execute(sa.select(ledger))}
    assert found[cool] == ("held", OTHER_TEMPERATURE)
    assert run.summary["train"] > 0
    with pytest.raises(RefusedError, match="temperature 1"):
        asked(student, ScorerConfig(url=engine), tmp_path, [replace(rows(1)[0], annotations={"temperature": 0.5})])


def test_a_penalty_s_fixed_reference_is_the_bare_base(store: Store, student: Path, tmp_path: Path) -> None:
    behaved = [
        replace(row, token_annotations={"behavior_logprobs": (None, None, -1.0, -1.0, None, -1.0)}) for row in rows(4)
    ]
    wanted = replace(config(student), rule=PpoRule(kl_weight=0.1))
    from nightschool.objectives.ppo import PPO

    scorers = Scorers.of(wanted, PPO.loss(wanted.rule).scored, tmp_path)
    scored = scorers.score(behaved, tmp_path, open_local, watching())
    backend = open_local(wanted.backend)
    backend.open(None)
    assert scores_of(scored[0], ORIGIN) == pytest.approx(list(backend.forward(rows(1))[0]), abs=1e-6)
    own = replace(behaved[0], token_annotations={ORIGIN: (None, None, -9.0, -9.0, None, -9.0)})
    assert scorers.score([own], tmp_path, open_local, watching()) == (own,), "a row that brings its own keeps them"
    assert PPO.loss(PpoRule()).scored == frozenset()
