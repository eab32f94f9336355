"""Signals nobody gave on purpose, together and alone: how well they tell which real runs of two agents failed.

200 runs of a model at an airline's desk (50 tasks, four times each; 116 failed) and 100 at a shop's (27 failed), as
they are, with users played by another model. They are imported like any log and read by `feedback.implicit`; what the
run's own books say is the label. The published claim: on each agent, all signals together, cross-validated in folds of
tasks, have a higher AUC for failure than each of the six signals that were measured alone before, read the way round
that suits it best. The claim is on the mean over the seeds; intervals draw whole tasks and may reach below zero, since
100 or 200 runs settle no more. A seed draws other folds. Beside it: signs taken from a textbook instead of learned, and
what was learned of one agent applied to the other.

The signals and the words they look for were written down before any run, but for words of negation, which were added
once complaints were seen to miss what one of the six had found. How fits are shrunk, calibrated and compared was
settled on these runs as well; there are no others at hand to try it on.

    NIGHTSCHOOL_DATA=folder python benchmarks/feedback/implicit.py --seeds 5
"""

from __future__ import annotations

import os
import sys
import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "objectives"))
from harness import COLORS, Experiment, Row, Seed, styled

from nightschool.feedback.implicit import labels
from nightschool.feedback.implicit.combination import fit_combination
from nightschool.feedback.implicit.loading import each_seen
from nightschool.feedback.implicit.report import weigh
from nightschool.feedback.reward import RewardRule
from nightschool.imports.taking import Wish, quiet, take
from nightschool.store.database import Store
from nightschool.types import Split
from nightschool.valuation.clustered import Interval
from nightschool.valuation.separation import cluster_draws, estimate, weighted_auc

SETTINGS: dict[str, Any] = {
    "runs": {"airline": "tau_bench/gpt-4o-airline.json", "shop": "agentrx/tau_dataset_full.json"},
    "draws": 500,
}
# AUC for failure of the six, as they were measured before on the same runs.
SIX = ("messages", "tool calls", "tool error", "words", "thanks", "escalation")
BEFORE = {
    "airline": dict(zip(SIX, (0.68, 0.65, 0.57, 0.49, 0.53, 0.35), strict=True)),
    "shop": dict(zip(SIX, (0.72, 0.69, 0.55, 0.78, 0.47, 0.55), strict=True)),
}
SINGLE = ("messages", "tool calls", "tool error", "complaint", "negation", "thanks", "escalation")
GOOD = ("thanks",)  # what a textbook takes for success; everything else it takes for failure
TOGETHER, ASSUMED, ELSEWHERE = "together", "signs assumed", "learned on the other"


def play(seed: int) -> Seed:
    """Of each agent: the area of every arm and of its draws, over pairs of runs that one fit scored."""
    return {agent: _played(agent, seed) for agent in SETTINGS["runs"]}


def _played(agent: str, seed: int) -> dict[str, Any]:
    rows = runs(agent)
    failed = rows.labels < 0.5
    model = fit_combination(rows.names, rows.values, rows.labels, rows.principals, f"{seed} ")
    columns = {name: rows.values[:, place] for place, name in enumerate(rows.names)}
    arms = {TOGETHER: -model.log_odds, **{name: columns[name] for name in SINGLE}}
    arms |= {ASSUMED: assumed(rows), ELSEWHERE: -elsewhere(agent, rows)}
    draws = np.vstack([np.ones(len(failed)), cluster_draws(rows.principals, SETTINGS["draws"])])
    areas = {name: weighted_auc(scores, failed, draws, model.folds) for name, scores in arms.items()}
    return {
        "areas": {name: [None if np.isnan(x) else round(float(x), 4) for x in found] for name, found in areas.items()},
        "signals": {one["name"]: {"auc": one["auc"], "says": one["says"]} for one in weigh(rows).report["signals"]},
        "runs": len(failed),
        "failed": int(failed.sum()),
    }


@cache
def runs(agent: str) -> labels.Rows:
    """The runs of an agent, through the store."""
    folder = os.environ.get("NIGHTSCHOOL_DATA")
    if not folder:
        sys.exit("NIGHTSCHOOL_DATA names no folder of real runs.")
    with TemporaryDirectory() as place, Store.open(Path(place) / "store.sqlite") as store:
        take(Path(folder) / SETTINGS["runs"][agent], Wish(None, agent, agent), store, quiet)
        with store.read() as conn:
            seen = each_seen(conn, store.tenant, agent, time.time() + 3600, 1000, tuple(Split))
            return labels.rows_of(seen, RewardRule())


def assumed(rows: labels.Rows) -> np.ndarray:
    """The sum of all signals in standard deviations, each with the sign that a textbook gives it."""
    compressed = np.log1p(np.nan_to_num(rows.values, nan=0.0))
    spread = compressed.std(axis=0)
    signs = np.array([-1.0 if name in GOOD else 1.0 for name in rows.names])
    return ((compressed - compressed.mean(axis=0)) / np.where(spread > 0, spread, 1.0)) @ signs


def elsewhere(agent: str, rows: labels.Rows) -> np.ndarray:
    """Log-odds of success as the other agent's runs have them."""
    other = runs(next(name for name in SETTINGS["runs"] if name != agent))
    return fit_combination(other.names, other.values, other.labels, other.principals).scorer.log_odds(rows.values)


def area(seeds: list[Seed], agent: str, name: str) -> tuple[float, np.ndarray]:
    """Mean over the seeds: the area, and those of the draws."""
    found = np.array([seed[agent]["areas"][name] for seed in seeds], dtype=float).mean(axis=0)
    return float(found[0]), found[1:]


def better(seeds: list[Seed], agent: str, name: str) -> Interval:
    """By how much all together are above one signal, read the way round that suits it best."""
    mine, my_draws = area(seeds, agent, TOGETHER)
    other, draws = area(seeds, agent, name)
    other, draws = (other, draws) if other >= 0.5 else (1 - other, 1 - draws)
    return estimate(mine - other, my_draws - draws)


def rows_of(seeds: list[Seed]) -> list[Row]:
    rows = []
    for agent in SETTINGS["runs"]:
        facts = seeds[0][agent]
        rows.append(Row(f"{agent}: runs, of them failed", f"{facts['runs']}, {facts['failed']}"))
        for name in (TOGETHER, ASSUMED, ELSEWHERE, *SINGLE):
            rows.append(Row(f"{agent}: {name}", shown(estimate(*area(seeds, agent, name)))))
        for name in SINGLE:
            found = better(seeds, agent, name)
            rows.append(Row(f"{agent}: together above {name}", shown(found, "+.3f"), "> 0", found.value > 0))
        learned, flat = area(seeds, agent, TOGETHER), area(seeds, agent, ASSUMED)
        gap = estimate(learned[0] - flat[0], learned[1] - flat[1])
        rows.append(Row(f"{agent}: together above signs assumed", shown(gap, "+.3f")))
        best = max(max(value, 1 - value) for value in BEFORE[agent].values())
        value = area(seeds, agent, TOGETHER)[0]
        rows.append(Row(f"{agent}: together above the best before", f"{value:.3f}", f"> {best:.2f}", value > best))
        for name in ("escalation", "thanks"):
            rows.append(Row(f"{agent}: what {name} means", str(facts["signals"][name]["says"])))
    return rows


def shown(found: Interval, form: str = ".3f") -> str:
    return f"{found.value:{form}} [{found.low:{form}}, {found.high:{form}}]"


def draw(figure: Any, seeds: list[Seed]) -> None:
    """Areas with their intervals, an agent a panel: together, then each signal that occurs."""
    names = list(SETTINGS["runs"])
    for axes, agent in zip(np.atleast_1d(figure.subplots(1, len(names))), names, strict=True):
        told = {name: one["auc"] for name, one in seeds[0][agent]["signals"].items() if one["auc"]}
        order = sorted(told, key=lambda name: told[name]["value"])
        lines = [(name, Interval(**told[name])) for name in order]
        lines += [(name, estimate(*area(seeds, agent, name))) for name in (ELSEWHERE, ASSUMED, TOGETHER)]
        for place, (_, found) in enumerate(lines):
            tone = COLORS[1] if place == len(lines) - 1 else COLORS[0] if place < len(order) else COLORS[4]
            axes.plot([found.low, found.high], [place, place], color=tone, lw=1.4)
            axes.plot([found.value], [place], "o", color=tone, ms=3.5)
        styled(axes, "AUC for failure", "")
        axes.set_yticks(range(len(lines)), [name for name, _ in lines], fontsize=7)
        axes.axvline(0.5, color="#5E5C64", lw=0.8)
        axes.set_title(f"{agent}, {seeds[0][agent]['runs']} runs", fontsize=9)


if __name__ == "__main__":
    Experiment("implicit", SETTINGS, play, rows_of, draw, (8.4, 5.0), "feedback").main(__doc__)
