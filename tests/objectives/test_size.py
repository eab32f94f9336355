"""An algorithm is read in one sitting: what annotates its samples and what it names as its loss stay short."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest

from nightschool.objectives.catalog import OBJECTIVES
from nightschool.objectives.clipping import Clip
from nightschool.objectives.loss import Objective
from nightschool.training.losses import LOSSES
from nightschool.training.losses.surrogates import SURROGATES

LIMIT = 120


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_algorithm_is_short(name: str) -> None:
    """Counted are all lines, docstrings and imports and blank ones too: of the file that annotates; of the loss that
    the objective names under its default settings, the surrogate that these choose, and whatever of their own files
    these call. Not counted is what files of several algorithms import: checks, advantages, weights, the batch."""
    objective = OBJECTIVES[name]
    code = code_of(objective)
    assert sum(code.values()) < LIMIT, code


def code_of(objective: Objective) -> dict[str, int]:
    module = sys.modules[objective.annotate.__module__]
    named = objective.loss(objective.rule())
    roots: list[Callable[..., Any]] = [LOSSES[named.name]]
    if isinstance(clip := named.settings.get("clip"), Clip):
        roots.append(SURROGATES[clip.surrogate])
    functions = {function.__qualname__: function for root in roots for function in called(root)}
    lines = {key: len(inspect.getsource(function).splitlines()) for key, function in functions.items()}
    return {module.__name__: len(inspect.getsource(module).splitlines()), **lines}


def called(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """The function, and those of its own file that it calls, and those that these call."""
    own = {
        key: value
        for key, value in vars(sys.modules[function.__module__]).items()
        if inspect.isfunction(value) and value.__module__ == function.__module__
    }
    found, waiting = [], [function]
    while waiting:
        one = waiting.pop()
        found.append(one)
        names = {node.id for node in ast.walk(ast.parse(inspect.getsource(one))) if isinstance(node, ast.Name)}
        waiting += [own[name] for name in own.keys() & names if own[name] not in (*found, *waiting)]
    return found


def test_what_is_counted() -> None:
    """KTO's loss and the function that gives its signs; a family member its own surrogate and no other's."""
    assert {"kto", "_signs"} < code_of(OBJECTIVES["kto"]).keys()
    assert {"clipped", "k3", "soft"} < code_of(OBJECTIVES["sapo"]).keys()
    assert "gamma" not in code_of(OBJECTIVES["sapo"])
    assert {"ppo", "value_losses", "bounded"} < code_of(OBJECTIVES["ppo"]).keys()
