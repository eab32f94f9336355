"""Every experiment of benchmarks/feedback plays a seed, tells its rows and draws, at a size that proves nothing."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

FOLDERS = [Path(__file__).parents[2] / "benchmarks" / name for name in ("feedback", "objectives")]
SMALL: dict[str, dict[str, Any]] = {
    "attacks": {"customers": 40, "shares": [0.1], "epochs": 1, "exam_customers": 20},
    "careless": {"raters": 60, "thumbs_each": 10, "betas": [2, 0.5, 0.25, 0.1]},
    "implicit": {"draws": 20},
    "teacher_audit": {"things": 4, "lessons": 200, "lesson_steps": 20, "nights": 1, "replies": 4},
    "solutions_watch": {
        "lessons": 200,
        "lesson_steps": 20,
        "trained": 3,
        "abroad": 3,
        "requests_per_round": 2,
        "rounds": 2,
        "every": 1,
        "asked": 1,
    },
}
ON_REAL_RUNS = ("implicit",)


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
    # the audit of the demo's own model needs a played demo: see below
    assert {file.stem for file in FOLDERS[0].glob("*.py")} == {*SMALL, "demo_audit"}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_an_experiment_plays_tells_and_draws(
    experiments: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    if name in ON_REAL_RUNS and not os.environ.get("NIGHTSCHOOL_DATA"):
        pytest.skip("NIGHTSCHOOL_DATA names no folder of real runs")
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


def test_signals_are_compared_the_way_round_that_suits_each(experiments: None) -> None:
    module = importlib.import_module("implicit")
    areas = {module.TOGETHER: [0.8, 0.7, 0.9], "messages": [0.6, 0.5, 0.8], "escalation": [0.3, 0.2, 0.5]}
    other = {name: [value - 0.1 for value in found] for name, found in areas.items()}
    seeds = [{"airline": {"areas": areas}}, {"airline": {"areas": other}}]
    # of two seeds 0.75 and 0.55: 0.2 more; of an escalation 0.25, which read the other way round is 0.75: nothing more
    assert module.better(seeds, "airline", "messages").value == pytest.approx(0.2)
    found = module.better(seeds, "airline", "escalation")
    # draws: 0.65 - (1 - 0.15) and 0.85 - (1 - 0.45)
    ends = np.quantile([-0.2, 0.3], [0.025, 0.975])
    assert (found.value, found.low, found.high) == pytest.approx((0.0, *ends))


def test_attackers_have_their_share_of_the_votes_that_train(experiments: None, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("attacks")
    honest = [
        module.Heard(f"customer {n}", 0.0, module.Visit("my card is wrong", "billing"), None, True) for n in range(200)
    ]
    training = sum(module.trains(one.person) for one in honest)
    assert 130 < training < 190  # 160 of 200 are expected, with a deviation of 6
    for attack, people in ((module.FLIP, 3), (module.PHRASE, 1), (module.SYBILS, 18), (module.TOOLS, 18)):
        voters = module.voters(attack, 18, honest)
        assert len(voters) == 18
        assert len(set(voters)) == people
        assert all(map(module.trains, voters)), "an attack that falls into another split would be none"
    for attack in module.ATTACKS:
        baits = module.bait(attack, module.clerk.LIVE)
        # of four desks with four things in two wordings: one desk for the flip, the three others for the rest
        assert len(baits) == (8 if attack == module.FLIP else 24)
        assert all(visit.desk != module.planted(attack) for visit in baits)


def test_a_loss_on_what_a_tool_said_is_what_the_name_says(experiments: None) -> None:
    module = importlib.import_module("attacks")
    sample = module.clerk.replied("x", [1, 7, 8, 2, 7], [7, 8])
    found = module.unmasked(sample, [7, 8])
    assert found.loss_mask == found.completion_mask == (False, True, True, False, False, True, True)


def test_the_demo_s_model_is_audited_by_the_command(
    experiments: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = importlib.import_module("demo_audit")
    area = {"value": 0.45, "low": 0.3, "high": 0.6}
    report = {"accepted": 13, "rejected": 16, "items": 40, "separation": {"all": {}}}
    report["separation"]["all"] = {key: {"area": area} for key in ("own", "beyond_placebo")}

    def run(words: list[str], **_more: Any) -> SimpleNamespace:
        assert words[3:6] == ["train", "--objective", "hindsight"]
        folder = Path(words[words.index("--state") + 1]) / "runs" / "r1"
        (folder / "work").mkdir(parents=True)
        (folder / "audit.json").write_text(json.dumps({"report": report}))
        answer = {"refusal": {"next": "nightschool train --objective oapl --agent support-shop"}}
        return SimpleNamespace(returncode=3, stdout=json.dumps(answer))

    monkeypatch.setattr(module.subprocess, "run", run)
    found = module.refused(tmp_path)
    rows = {row.name: row for row in module.rows_of([found, {**found, "code": 0}])}
    assert rows["refused, before a step"].value == "1 of 2"
    assert rows["refused, before a step"].passed is False
    assert rows["a scalar objective is named"].passed
    assert rows["area between accepted and rejected, behind their own words"].value.startswith("0.45")
    check(module, [found, {**found, "code": 0}])


def test_what_a_watched_run_keeps_is_the_look_before_its_stop(experiments: None) -> None:
    module = importlib.import_module("solutions_watch")
    looks = [[0, 0.7, 0.6, 200.0], [5, 0.8, 0.5, 90.0], [10, 0.9, 0.3, 10.0]]
    assert module.kept({"looks": looks, "stopped": None}, 2) == 0.3
    assert module.kept({"looks": looks, "stopped": 10}, 2) == 0.5
    assert module.kept({"looks": looks, "stopped": 5}, 3) == 200.0
