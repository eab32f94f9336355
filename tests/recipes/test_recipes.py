"""Every recipe learns: its measure improves, within a few steps here, and as a command where tests may be slow."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

RECIPES = Path(__file__).parents[2] / "recipes"
NAMES = sorted(path.stem for path in RECIPES.glob("*.py") if path.stem != "clerk")
MOST_LINES = 300

# Steps of the fast setting, and the least that each measure gains in it. An untaught clerk is right in about 38 of 100
# replies, or is off by 30; a twentieth of it all is far more than the noise of another machine's arithmetic.
FEW = {"dpo": 20, "grpo": 4, "hindsight": 12, "oapl": 6, "on_policy": 8, "ppo": 4, "sft": 10, "thumbs": 20}
GAIN = 0.05
Play = Callable[..., list[tuple[str, float, float]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the clerk is made once for all recipes."""
    return tmp_path_factory.mktemp("recipes")


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Play]]:
    """A recipe's `run`, imported as the script imports its neighbor, and forgotten afterwards."""
    monkeypatch.syspath_prepend(RECIPES)
    yield lambda name: import_module(name).run
    for name in [*NAMES, "clerk"]:
        sys.modules.pop(name, None)


def test_there_is_one_for_each_family():
    assert set(NAMES) == set(FEW) == {"sft", "dpo", "thumbs", "oapl", "grpo", "ppo", "hindsight", "on_policy"}


@pytest.mark.parametrize("name", [*NAMES, "clerk"])
def test_a_recipe_is_flat(name):
    """One file that is read from top to bottom: short, no classes but the clerk's one, no import of another recipe."""
    text = (RECIPES / f"{name}.py").read_text()
    tree = ast.parse(text)
    assert len(text.splitlines()) < MOST_LINES
    assert sum(isinstance(node, ast.ClassDef) for node in ast.walk(tree)) == (name == "clerk")
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert not modules & set(NAMES)
    assert not {module for module in modules if module and module.startswith(("nightschool.store", "nightschool.cli"))}


@pytest.mark.parametrize("name", NAMES)
def test_a_few_steps_help(name, recipe, folder):
    rows = recipe(name)(folder, steps=FEW[name], seed=0)
    check(rows, GAIN)


@pytest.mark.parametrize("variant", ["grpo", "dr_grpo"])
def test_other_variants_help_as_well(variant, recipe, folder):
    check(recipe("grpo")(folder, steps=FEW["grpo"], seed=0, variant=variant), GAIN)


def test_a_reward_beside_a_teacher_helps_as_well(recipe, folder):
    check(recipe("on_policy")(folder, steps=FEW["on_policy"], seed=0, mix="reward"), GAIN)


def test_replies_are_scored_as_they_were_drawn(recipe, folder):
    """The log-probabilities that come with a reply are those the trainer gives it: a ratio of 1 at the first step."""
    recipe("grpo")
    clerk = sys.modules["clerk"]
    backend = clerk.hire(folder, seed=0)
    drawn = clerk.draw(backend, clerk.LIVE, seed=0)
    for row, scores in zip(drawn, backend.forward(drawn), strict=True):
        said = [score for score in scores if score is not None]
        behavior = [score for score in row.token_annotations["behavior_logprobs"] if score is not None]
        assert behavior == pytest.approx(said, abs=1e-5)


def test_the_same_seed_gives_the_same_numbers(recipe, folder):
    run = recipe("grpo")
    assert run(folder, steps=2, seed=0) == run(folder, steps=2, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_runs_as_a_command(name):
    """With its own steps: right in more than half of all replies afterwards, from 38 of 100."""
    done = subprocess.run([sys.executable, RECIPES / f"{name}.py"], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    told = [line.replace("%", "").split() for line in done.stdout.splitlines() if line.startswith("right replies")]
    assert told
    assert all(float(line[-1]) > 50.0 for line in told if "alone" not in line), done.stdout


def check(rows: list[tuple[str, float, float]], gain: float) -> None:
    """Shares rise; what is off comes nearer."""
    for name, before, after in rows:
        change = before - after if "off" in name else after - before
        assert change > gain, (name, before, after)
