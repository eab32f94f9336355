"""Does the epistemic watch stop a distillation that teaches doubt away, and let one pass that does not?

The world, the reader and the arms are those of `objectives/solutions.py`: teachers who are told the solution, or only
that an answer was wrong, frozen or made anew as each round begins. Here the product's watch looks on
(`training.epistemic`): at the start and every 5 rounds it counts "maybe" and "wait" in drawn replies, and success on
requests of other relations, which nobody trains on. Where it says stop, the policy goes back to the last look that had
nothing against it; the same arm also runs on, unwatched. Thresholds are those of `WatchRule`, not tuned here.

    python benchmarks/feedback/solutions_watch.py --seeds 5
"""

from __future__ import annotations

import itertools
import math
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1] / "objectives"))
import solutions
from harness import COLORS, Experiment, Row, Seed, claim, measured, styled
from reader import Reader, School, hire, taught
from solutions import ARMS, BOTH, FROZEN, LONGEST, MARKERS, MOVING, Chains

from nightschool.objectives.sdpo import SdpoRule
from nightschool.training.backend import Drawn
from nightschool.training.epistemic import Look, Reply, WatchRule, alarms, look_at, reason_to_stop

SETTINGS: dict[str, Any] = {
    **{key: solutions.SETTINGS[key] for key in ("relations", "animals", "skill", "sure", "doubt", "rate")},
    **{key: solutions.SETTINGS[key] for key in ("lessons", "lesson_steps", "lesson_batch", "trained", "abroad")},
    **{key: solutions.SETTINGS[key] for key in ("requests_per_round", "group_size", "epochs", "batch_size")},
    "rounds": 30,
    "every": 5,
    "asked": 4,
}
FEEDBACK = "feedback, moving teacher"
WATCHED = (MOVING, FROZEN, FEEDBACK, BOTH)
RULE = WatchRule()


def play(seed: int) -> Seed:
    world = Chains.make(seed, SETTINGS)
    school = School(lessons=SETTINGS["lessons"], steps=SETTINGS["lesson_steps"], batch_size=SETTINGS["lesson_batch"])
    kind = [SETTINGS[key] for key in solutions.WORLD]
    reader, teacher = (hire("chains", world, seed, school, kind) for _ in range(2))
    trained = random.Random(seed).sample(world.requests(home=True), SETTINGS["trained"])
    return {name: learn(reader, teacher, world, trained, name, seed) for name in WATCHED}


def learn(reader: Reader, teacher: Reader, world: Chains, trained: list[Any], name: str, seed: int) -> dict[str, Any]:
    """All looks of an arm that runs on: rounds, success at home and abroad, markers per 1,000 tokens; when the watch
    would have stopped it, why, and the alarms by round."""
    arm, chance, parent = ARMS[name], random.Random(seed), None
    course = solutions.study(arm)
    abroad = random.Random(seed).sample(world.requests(home=False), SETTINGS["abroad"])
    looks: list[Look] = []
    rows_seen: list[list[float]] = []
    stopped, why, signs = None, "", {}
    reader.backend.open(None)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(SETTINGS["rounds"] + 1):
            if number % SETTINGS["every"] == 0:
                home, elsewhere = (drawn_replies(reader, world, asked, seed) for asked in (trained, abroad))
                looks.append(look_at(number, home, elsewhere, MARKERS))
                rate = fmean(bool(reply.right) for reply in home)
                rows_seen.append([number, rate, fmean(looks[-1].success.values()), looks[-1].density])
                reason = reason_to_stop(looks[0], looks[-1], RULE)
                if reason and stopped is None:
                    stopped, why = number, reason
                if found := alarms(looks[0], looks[-1], None, RULE):
                    signs[number] = found
            if number == SETTINGS["rounds"]:
                break
            asked = chance.sample(trained, SETTINGS["requests_per_round"])
            requests = [request for request in asked for _ in range(SETTINGS["group_size"])]
            prompts = [reader.prompt(world.text(one)) for one in requests]
            replies = reader.backend.draw(prompts, LONGEST, seed * 1000 + number)
            rows, views = solutions.annotated(reader, world, arm, requests, replies)  # type: ignore[arg-type]
            if arm.frozen:
                rows, views = taught(rows, views, reader, teacher, SdpoRule().top), []
            if rows:
                parent = course.night(reader, rows, views, parent, Path(folder) / str(number))
    return {"looks": rows_seen, "stopped": stopped, "why": why, "alarms": signs}


def drawn_replies(reader: Reader, world: Chains, requests: Sequence[Any], seed: int) -> list[Reply]:
    """Some replies to each request, with the same seeds at every look."""
    asked = [request for request in requests for _ in range(SETTINGS["asked"])]
    prompts = [reader.prompt(world.text(request)) for request in asked]
    drawn = reader.backend.draw(prompts, LONGEST, seed)
    return [_reply(reader, world, request, one) for request, one in zip(asked, drawn, strict=True)]


def _reply(reader: Reader, world: Chains, request: Any, one: Drawn) -> Reply:
    words = reader.words(one.ids)
    right = world.reward(request, words) == 1.0
    confidence = math.exp(fmean(one.logprobs))
    return Reply(str(request), " ".join(words), len(one.ids), fmean(one.entropies), confidence, right)


def kept(found: dict[str, Any], column: int) -> float:
    """What a run has in the end that the watch stops: the look before its stop, else its last."""
    looks = found["looks"]
    if found["stopped"] is None:
        return looks[-1][column]
    return next(before for before, after in itertools.pairwise(looks) if after[0] == found["stopped"])[column]


def rows_of(seeds: list[Seed]) -> list[Row]:
    rows: list[Row] = []
    for arm in WATCHED:
        stops = [seed[arm]["stopped"] for seed in seeds]
        count = sum(stop is not None for stop in stops)
        wanted = {MOVING: len(seeds), FROZEN: len(seeds), BOTH: 0}.get(arm)
        passed = None if wanted is None else count == wanted
        bound = "" if wanted is None else f"= {wanted}"
        rows.append(Row(f"{arm}: stopped by the watch", f"{count} of {len(seeds)}", bound, passed))
        rounds = [float("nan") if stop is None else float(stop) for stop in stops]
        rows.append(measured(f"{arm}: rounds until then", rounds, 1))
        for column, title in ((1, "success at home"), (2, "success abroad"), (3, "markers per 1,000 tokens")):
            digits = 0 if column == 3 else 3
            rows.append(measured(f"{arm}: {title}, before", [seed[arm]["looks"][0][column] for seed in seeds], digits))
            rows.append(measured(f"{arm}: {title}, run on", [seed[arm]["looks"][-1][column] for seed in seeds], digits))
            rows.append(measured(f"{arm}: {title}, watched", [kept(seed[arm], column) for seed in seeds], digits))
        rows.append(Row(f"{arm}: seeds with an alarm", f"{sum(bool(seed[arm]['alarms']) for seed in seeds)}"))
    for arm in (MOVING, FROZEN):
        saved = [kept(seed[arm], 2) - seed[arm]["looks"][-1][2] for seed in seeds]
        rows.append(claim(f"{arm}: the watch keeps success abroad", saved))
    return rows


def draw(figure: Any, seeds: list[Seed]) -> None:
    """Markers, and success abroad, over rounds; a cross where the watch stops."""
    panels = figure.subplots(1, 2)
    for axes, column, title in zip(panels, (3, 2), ("markers per 1,000 tokens", "success abroad"), strict=True):
        for color, arm in zip(COLORS, WATCHED, strict=False):
            curves = torch.tensor([seed[arm]["looks"] for seed in seeds])
            for seed, curve in zip(seeds, curves, strict=True):
                axes.plot(curve[:, 0], curve[:, column], color=color, lw=0.5, alpha=0.35)
                for look in curve:
                    if look[0] == seed[arm]["stopped"]:
                        axes.plot([look[0]], [look[column]], "x", color=color, ms=5)
            axes.plot(curves[0, :, 0], curves[:, :, column].mean(0), color=color, lw=1.6, label=arm)
        styled(axes, "rounds", title).set_ylim(0, None if column == 3 else 1)
    panels[0].legend(frameon=False, fontsize=7)


if __name__ == "__main__":
    Experiment("solutions_watch", SETTINGS, play, rows_of, draw, group="feedback").main(__doc__)
