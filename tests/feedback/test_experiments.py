"""Every experiment of benchmarks/feedback plays a seed, tells its rows and draws, at a size that proves nothing."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

FOLDERS = [Path(__file__).parents[2] / "benchmarks" / name for name in ("feedback", "objectives")]
SMALL: dict[str, dict[str, Any]] = {
    "careless": {"raters": 60, "thumbs_each": 10, "betas": [2, 0.5, 0.25, 0.1]},
}


@pytest.fixture
def experiments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Their folders on the path, readers kept in one of the test, and what is set for the whole process put back."""
    path, threads, dtype = list(sys.path), torch.get_num_threads(), torch.get_default_dtype()
    for folder in FOLDERS:
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(importlib.import_module("reader"), "OUT", tmp_path)
    yield
    sys.path[:] = path
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)


def test_all_are_tried() -> None:
    assert {file.stem for file in FOLDERS[0].glob("*.py")} == {*SMALL}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_an_experiment_plays_tells_and_draws(
    experiments: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    module = importlib.import_module(name)
    monkeypatch.setattr(module, "OUT", tmp_path, raising=False)
    torch.set_default_dtype(torch.float64)  # the harness, imported once, says so to its own process
    for key, value in SMALL[name].items():
        assert key in module.SETTINGS
        monkeypatch.setitem(module.SETTINGS, key, value)
    check(module, [json.loads(json.dumps(module.play(seed))) for seed in (0, 1)])


def check(module: ModuleType, seeds: list[dict[str, Any]]) -> None:
    """Its rows have names of their own, it draws, and numbers of seeds differ."""
    rows = module.rows_of(seeds)
    assert len({row.name for row in rows}) == len(rows) > 3
    assert json.dumps(seeds[0]) != json.dumps(seeds[1])
    figure = Figure()
    module.draw(figure, seeds)
    assert figure.axes
