"""Fixtures: the engines that keep one contract, the embedded one with a tiny and with a real model, and vLLM.

Loaded for every run of pytest, so what brings torch is imported where it is needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nightschool.models.fetch import find_model
from nightschool.releases.manifest import Manifest
from nightschool.rendering.renderer import Renderer

REAL = "smollm2-135m"
CAPACITY = 2048  # tokens of prompt and reply, in each of the engines


@dataclass(frozen=True)
class Lesson:
    """A model and an adapter taught on it (`speaking.LESSON`)."""

    model: Path
    adapter: Path
    manifest: Manifest


@dataclass(frozen=True)
class Contracted:
    """An engine that answers at `url`, and what is known of its model. `kind`: tiny, real or vllm."""

    kind: str
    url: str
    lesson: Lesson
    renderer: Renderer

    @property
    def base(self) -> str:
        return self.lesson.model.name


@pytest.fixture(scope="session")
def tiny_lesson(tmp_path_factory: pytest.TempPathFactory) -> Lesson:
    from speaking import teach
    from tiny import make_teachable_model

    folder = tmp_path_factory.mktemp("tiny-lesson")
    model = make_teachable_model(folder / "tiny")
    return Lesson(model, folder / "adapter", teach(model, folder / "adapter", learning_rate=0.01, min_steps=80))


@pytest.fixture(scope="session")
def real_lesson(tmp_path_factory: pytest.TempPathFactory) -> Lesson:
    from speaking import teach

    folder, model = tmp_path_factory.mktemp("real-lesson"), find_model(REAL)
    return Lesson(model, folder / "adapter", teach(model, folder / "adapter", learning_rate=0.002))


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real vLLM that serves the 135M model, where NIGHTSCHOOL_VLLM names a python that has it."""
    from real_vllm import running_vllm

    python = os.environ.get("NIGHTSCHOOL_VLLM")
    if not python:
        pytest.skip("NIGHTSCHOOL_VLLM names no python that has vLLM; .ci/vllm.sh makes one")
    with running_vllm(python, find_model(REAL), tmp_path_factory.mktemp("vllm")) as url:
        yield url


@pytest.fixture(
    scope="session",
    params=[
        "tiny",
        pytest.param("real", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
        pytest.param("vllm", marks=[pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(900)]),
    ],
)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Contracted]:
    import torch
    from fake_engine import serve

    from nightschool.engine.server import build_app
    from nightschool.engine.service import Engine, Settings
    from nightschool.models.base import load_base

    lesson: Lesson = request.getfixturevalue("tiny_lesson" if request.param == "tiny" else "real_lesson")
    renderer = Renderer.from_folder(lesson.model)
    if request.param == "vllm":
        yield Contracted("vllm", request.getfixturevalue("vllm"), lesson, renderer)
        return
    # Every folder of these tests lies below the root from which the embedded engine takes adapters.
    settings = Settings(adapters=tmp_path_factory.getbasetemp(), max_batch=4, capacity=CAPACITY)
    with serve(build_app(Engine(load_base(lesson.model, torch.float32, "cpu"), settings))) as url:
        yield Contracted(request.param, url, lesson, renderer)
