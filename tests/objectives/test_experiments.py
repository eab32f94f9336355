"""Every experiment of benchmarks/objectives plays a seed, tells its rows and draws, at a size that proves nothing."""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

FOLDER = Path(__file__).parents[2] / "benchmarks" / "objectives"
SMALL: dict[str, dict[str, Any]] = {
    "single_rollout": {"rows": [200], "fresh_requests": 30, "betas": [4]},
    "staleness": {"steps": 10, "lags": [1, 5], "tasks": 8, "tasks_per_step": 4},
    "off_policy": {"steps": 20, "tasks": 8, "logged_tasks": 4, "replies": 16},
    "split_thumbs": {"rows": 400, "fresh_requests": 30, "epochs": 2},
    "late_feedback": {"rows": 30, "fresh_requests": 30, "betas": [4], "steps": 10},
}


@pytest.fixture
def experiments(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Their folder on the path, and what they set for the whole process put back."""
    path, threads, dtype = list(sys.path), torch.get_num_threads(), torch.get_default_dtype()
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    sys.path[:] = path
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)


def test_all_are_tried() -> None:
    found = {file.stem for file in FOLDER.glob("*.py")} - {"harness", "reader"}
    assert found == {*SMALL, "critic_cost"}  # that one starts processes: see below


@pytest.mark.parametrize("name", SMALL)
def test_an_experiment_plays_tells_and_draws(experiments: None, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    module = importlib.import_module(name)
    torch.set_default_dtype(torch.float64)  # the harness, imported once, says so to its own process
    for key, value in SMALL[name].items():
        assert key in module.SETTINGS
        monkeypatch.setitem(module.SETTINGS, key, value)
    seeds = [json.loads(json.dumps(module.play(seed))) for seed in (0, 1)]
    check(module, seeds)


def test_the_cost_of_a_critic_is_told_of_one_window(experiments: None, tmp_path: Path) -> None:
    module = importlib.import_module("critic_cost")
    module.make_model(tmp_path, 0)
    found = {name: module.window(name, tmp_path, 0) for name in module.ARMS}
    check(module, [found, found])
    # policy and critic: twice the adapters and moments
    assert found["PPO, the same replies"]["state, MB"] / found["GRPO"]["state, MB"] == pytest.approx(2, rel=0.05)
    # 16 prompts of 96 instead of 4, and 16 replies of 48
    assert found["GRPO"]["tokens"] == 4 * 96 + 16 * 48
    assert found["PPO, one reply a prompt"]["tokens"] == 16 * (96 + 48)


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
