"""Every experiment of benchmarks/objectives plays a seed, tells its rows and draws, at a size that proves nothing."""

from __future__ import annotations

import importlib
import json
import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

FOLDER = Path(__file__).parents[2] / "benchmarks" / "objectives"
SMALL: dict[str, dict[str, Any]] = {
    "single_rollout": {"rows": [200], "fresh_requests": 30, "betas": [4]},
    "staleness": {"steps": 10, "lags": [1, 5], "tasks": 8, "tasks_per_step": 4},
    "off_policy": {"steps": 20, "tasks": 8, "logged_tasks": 4, "replies": 16},
    "split_thumbs": {"rows": 400, "fresh_requests": 30, "epochs": 2},
    "text_errors": {
        "things": 2,
        "lessons": 200,
        "lesson_steps": 20,
        "requests_per_round": 2,
        "group_size": 4,
        "rounds": 2,
    },
    "solutions": {
        "lessons": 200,
        "lesson_steps": 20,
        "trained": 3,
        "few": 2,
        "abroad": 3,
        "requests_per_round": 2,
        "rounds": 1,
        "asked": 1,
    },
    "late_feedback": {"rows": 30, "fresh_requests": 30, "betas": [4], "steps": 10},
    "three_tasks": {"rates": [1e-2], "windows": 1, "steps": 1, "hidden": 16, "lessons": 64, "lesson_steps": 2},
}


@pytest.fixture
def experiments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Their folder on the path, readers kept in one of the test, and what is set for the whole process put back."""
    path, threads, dtype = list(sys.path), torch.get_num_threads(), torch.get_default_dtype()
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(importlib.import_module("reader"), "OUT", tmp_path)
    yield
    sys.path[:] = path
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)


def test_all_are_tried() -> None:
    found = {file.stem for file in FOLDER.glob("*.py")} - {"harness", "reader"}
    assert found == {*SMALL, "critic_cost"}  # that one starts processes: see below


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_an_experiment_plays_tells_and_draws(experiments: None, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    module = importlib.import_module(name)
    torch.set_default_dtype(torch.float64)  # the harness, imported once, says so to its own process
    for key, value in SMALL[name].items():
        assert key in module.SETTINGS
        monkeypatch.setitem(module.SETTINGS, key, value)
    seeds = [json.loads(json.dumps(module.play(seed))) for seed in (0, 1)]
    check(module, seeds)


@pytest.mark.slow
def test_the_cost_of_a_critic_is_told_of_one_window(experiments: None) -> None:
    module = importlib.import_module("critic_cost")
    found = module.play(0)  # in fresh processes: in this one the heap of earlier tests would hold all of a window
    assert all(parts["peak, MB"] > 0 for parts in found.values())
    check(module, [found, found])
    # policy and critic: twice the adapters and moments
    assert found["PPO, the same replies"]["state, MB"] / found["GRPO"]["state, MB"] == pytest.approx(2, rel=0.05)
    # 16 prompts of 96 instead of 4, and 16 replies of 48
    assert found["GRPO"]["tokens"] == 4 * 96 + 16 * 48
    assert found["PPO, one reply a prompt"]["tokens"] == 16 * (96 + 48)


def test_a_lesson_of_the_office_is_read_or_known(experiments: None) -> None:
    module = importlib.import_module("three_tasks")
    office, rng = module.Office.make(0), random.Random(0)
    told = known = asked = 0
    for _ in range(1000):
        lesson = office.lesson(rng)
        assert all(sum(chances.values()) == pytest.approx(1) for chances in lesson.chances)
        assert all(chances[word] > 0 for chances, word in zip(lesson.chances, lesson.reply, strict=True))
        if lesson.reply[:2] == ("it", "is"):
            # one of three forms begins with "it", and none of the others goes on as this one does
            assert (lesson.chances[0]["it"], lesson.chances[1]["is"]) == (pytest.approx(1 / 3), pytest.approx(1.0))
            color = lesson.reply[2] in module.ANSWERS["color"]
            # in doubt by 0.03, of which a quarter goes to each answer; by nothing where there is nothing to know
            certain = max(lesson.chances[2].values())
            assert certain == pytest.approx(0.9775 if color or lesson.told else 0.25)
            told, known = told + bool(lesson.told), known + color
        if lesson.request.endswith("briefly"):
            assert len(lesson.reply) == 2
            asked += 1
    assert min(told, known, asked) > 10


def test_what_is_kept_is_read_where_the_newest_tasks_are_learned(experiments: None) -> None:
    module = importlib.import_module("three_tasks")

    def exam(desk: float, day: float, shelf: float, known: float) -> dict[str, float]:
        return {"desk": desk, "day": day, "shelf": shelf, "color": known, "form": known}

    slow = [exam(0.4, 0.2, 0.2, 0.9), exam(0.4, 0.4, 0.2, 0.9), exam(0.3, 0.3, 0.4, 0.8)]
    fast = [exam(0.8, 0.2, 0.2, 0.5), exam(0.4, 0.8, 0.2, 0.5), exam(0.1, 0.1, 0.8, 0.2)]
    seed = {"before": exam(0.25, 0.25, 0.25, 1.0), "arms": {"SFT": {"1": slow, "2": fast}}}
    # learned 0.25, 0.4 and 0.8: 0.5 is a quarter of the way from slow to fast
    assert module.kept(seed, "SFT", "earlier") == pytest.approx(0.3 - 0.25 * 0.2)
    assert module.kept(seed, "SFT", "known") == pytest.approx(0.8 - 0.25 * 0.6)
    # at the end all three: (0.3 + 0.3 + 0.4) / 3 and (0.1 + 0.1 + 0.8) / 3
    assert [one.all_three for one in module.outcomes(seed, "SFT")] == pytest.approx([0.25, 1 / 3, 1 / 3])
    # of the two earlier ones 0.4 and 0.4, later 0.8 and 0.8, fell to 0.3 and to 0.1
    assert [one.forgotten for one in module.outcomes(seed, "SFT")] == pytest.approx([0.0, 0.1, 0.7])
    seed["arms"]["SFT"].pop("2")
    assert math.isnan(module.kept(seed, "SFT", "known"))


def test_the_suite_plays_all_and_adds_their_time(
    experiments: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER.parent))
    suite = importlib.import_module("objectives")
    played: list[str] = []

    def run(words: list[Any]) -> SimpleNamespace:
        played.append(words[1].stem)
        (tmp_path / "objectives").mkdir(exist_ok=True)
        (tmp_path / "objectives" / f"{words[1].stem}.json").write_text('{"seconds": 30}')
        return SimpleNamespace(returncode=int(words[1].stem == "staleness"))

    monkeypatch.setattr(suite, "subprocess", SimpleNamespace(run=run))
    monkeypatch.setattr(suite, "OUT", tmp_path)
    monkeypatch.setattr(sys.modules["common"], "OUT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["objectives.py"])
    suite.main()
    assert set(played) == {*SMALL, "critic_cost"}
    rows = {row["name"]: row for row in json.loads((tmp_path / "objectives.json").read_text())["rows"]}
    assert (rows["experiments that failed"]["value"], rows["experiments that failed"]["passed"]) == ("1", False)
    # half a minute each, but for the one that failed
    assert float(rows["processor time, min"]["value"]) == (len(played) - 1) / 2


def test_an_environment_tells_of_the_first_wrong_word(experiments: None) -> None:
    module = importlib.import_module("text_errors")
    world = module.Codes.make(0, kinds=1, things=1)
    first, second, third, end = world.reply(0)
    other = next(word for word in world.codes if word not in (first, second))
    assert module.error(world, 0, (first, second, third, end), expected=True) is None
    assert module.error(world, 0, (first, other, third, end), True) == f"the second word should be {second}"
    assert module.error(world, 0, (other, other, third, end), False) == f"the first word is not {other}"
    assert module.error(world, 0, (first, end), True) is None  # no word of the code, and so nothing to tell
    looks = [[0, 0.1], [64, 0.3], [128, 0.7], [192, 0.6]]
    assert module.generations_to(looks, 1) == pytest.approx(96)  # 0.5 lies half way from 0.3 to 0.7
    assert math.isnan(module.generations_to([*looks, [256, 0.4]], 1))


def test_doubt_is_written_by_one_rule(experiments: None) -> None:
    module = importlib.import_module("solutions")
    relations = np.array([[1, 0], [0, 1]])  # the first relation swaps two animals, the second keeps them
    belief = np.full((2, 2, 2, 2), 0.5)
    belief[0, 0, 0] = [0.8, 0.2]
    world = module.Chains(relations, belief, sure=0.9, doubt=0.1)
    assert (world.text((0, 1, 0)), world.answer((0, 1, 0))) == ("likes fears ant", 1)  # kept, then swapped
    assert world.reward((0, 1, 0), ("bee", module.END)) == 1.0
    assert world.reward((0, 1, 0), ("maybe", "ant", "wait", "ant", "bee", module.END)) == 1.0
    assert world.reward((0, 1, 0), ("maybe", "bee", module.END)) == 0.0
    assert world.wrong((0, 1, 0), ("ant", module.END)) == "it is not ant"
    assert world.wrong((0, 1, 0), ("bee", module.END)) is None
    rng, anything, ant, bee = random.Random(0), np.array([True, True]), np.array([True, False]), np.array([False, True])
    assert world.written((0, 0, 0), anything, rng)[1][0]["maybe"] == pytest.approx(0.2)  # what 0.8 leaves
    assert world.written((0, 0, 0), bee, rng)[1][0]["maybe"] == pytest.approx(0.08)  # bee: 0.9 and 0.1 of 0.2
    doubted = [world.written((1, 1, 0), ant, rng)[1] for _ in range(2000)]
    steps = [chances[3:] for chances in doubted if len(chances) > 1]
    assert all(first["ant"] == pytest.approx(0.9) for first, _ in steps)
    # told ant: 0.9 for certain, and 0.1 of the 0.9 or 0.1 with which a step from ant or bee leads there
    assert {round(last["ant"], 6) for _, last in steps} == {0.99, 0.91}


def test_an_interval_is_a_students(experiments: None) -> None:
    interval = importlib.import_module("harness").interval
    mean, half, num = interval([1.0, 2.0, 3.0, math.nan])
    # deviation 1, t of two degrees of freedom 4.302653, over sqrt 3
    assert (mean, num) == (2.0, 3)
    assert half == pytest.approx(4.302653 / math.sqrt(3), abs=1e-6)


def check(module: ModuleType, seeds: list[dict[str, Any]]) -> None:
    rows = module.rows_of(seeds)
    assert len({row.name for row in rows}) == len(rows)
    module.draw(Figure(), seeds)
