"""Readers that experiments teach: what a writer of a world would say, and that the library trains what was taught."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from nightschool.objectives.hindsight import HINDSIGHT, HindsightRule
from nightschool.objectives.sdpo import SDPO, SdpoRule
from nightschool.training.backend import AdamConfig
from nightschool.training.loop import LoopConfig

FOLDER = Path(__file__).parents[2] / "benchmarks" / "objectives"


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    """The module, with readers kept in a folder of the test."""
    path, threads, dtype = list(sys.path), torch.get_num_threads(), torch.get_default_dtype()
    monkeypatch.syspath_prepend(str(FOLDER))
    module = importlib.import_module("reader")
    monkeypatch.setattr(module, "OUT", tmp_path)
    yield module
    sys.path[:] = path
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)


def test_a_writer_believes_what_it_is_told(reader: ModuleType) -> None:
    right, belief = np.array([[0, 1, 2]]), np.full((1, 3, 4), 0.25)
    world = reader.Codes(("paint",), ("boat",), ("red", "blue", "green", "white"), right, belief, doubt=0.1)
    assert world.reply(0) == ("red", "blue", "green", reader.END)
    assert (world.reward(0, world.reply(0)), world.reward(0, ("red",))) == (1.0, 0.0)
    rng, seen = random.Random(0), set()
    for _ in range(200):
        lesson = world.lesson(rng)
        assert all(sum(chances.values()) == pytest.approx(1) for chances in lesson.chances)
        words = (lesson.told or "").split()
        seen.add(words[3:5] == ["should", "be"] or words[3:5] == ["is", "not"] or lesson.told is None)
        if words[3:5] in (["should", "be"], ["is", "not"]):
            given = lesson.chances[reader.ORDINALS.index(words[1])][words[-1]]
            # 0.9 of certainty and 0.1 of the 0.25 that was believed before; or the latter alone
            assert given == pytest.approx(0.925 if words[3] == "should" else 0.025)
        elif lesson.told is None:
            assert lesson.chances[0] == pytest.approx(dict.fromkeys(world.codes, 0.25))
    assert seen == {True, False}  # False: the whole reply was told


def test_a_reader_is_taught_once_and_trained_by_the_library(reader: ModuleType, tmp_path: Path) -> None:
    world = reader.Codes.make(0, kinds=1, things=2)
    school = reader.School(hidden=16, layers=1, lessons=64, steps=2)
    one = reader.hire("codes", world, 0, school)
    again = reader.hire("codes", world, 0, school)
    assert again.folder == one.folder
    prompt = one.prompt(world.requests[0])
    drawn = one.draw([prompt, prompt], 4, seed=1)
    said = [reader.drawn(str(n), prompt, reply) for n, reply in enumerate(drawn)]
    # the sampler's own log-probabilities are the trainer's
    for row, reply in zip(one.backend.forward(said), drawn, strict=True):
        assert [x for x in row if x is not None] == pytest.approx(reply.logprobs, abs=1e-5)
    told = one.prompt(world.requests[0], world.should(0))
    views = [reader.said(str(n), told, reply.ids) for n, reply in enumerate(drawn)]
    before = one.chances([prompt], [one.ids(world.reply(0))])
    config = LoopConfig(epochs=1, batch_size=2, optimizer=AdamConfig(learning_rate=1e-2))
    for objective, rule in ((SDPO, SdpoRule(top=4)), (HINDSIGHT, HindsightRule())):
        study = reader.Study(objective, rule, config)
        adapter = study.night(one, said, views, None, tmp_path / objective.name)
        after = one.chances([prompt], [one.ids(world.reply(0))])
        assert after != before
        one.backend.open(adapter)  # what comes next starts from the same
        assert one.chances([prompt], [one.ids(world.reply(0))]) == after


def test_a_placebo_is_what_another_request_was_told(reader: ModuleType) -> None:
    class Fake:
        """Right only when it is told its own name."""

        def ids(self, reply: tuple[str, ...]) -> str:
            return reply[0]

        def prompt(self, request: str, told: str | None) -> tuple[str, str | None]:
            return request, told

        def chances(self, prompts: list[tuple[str, str | None]], replies: list[str]) -> list[float]:
            return [float(told == reply) for (_, told), reply in zip(prompts, replies, strict=True)]

    found = reader.audit(Fake(), ["a", "b"], ["A", "B"], [("A",), ("B",)])
    assert (found.alone, found.told, found.placebo) == (0.0, 1.0, 0.0)
