"""SDPO against GRPO where the environment answers a failing reply with a text that the teacher can read.

A tiny transformer was taught 32 requests with one right reply each, three words out of eight; it knows half of them a
little and the others hardly, and heeds what is said of an earlier reply (`reader.py`). A round draws 8 replies to each
of 8 requests and goes over them twice. GRPO learns from who was right. SDPO learns from the replies that failed, behind
the error about each: what the first wrong word should have been, as a failing test says it, or only that it is wrong.
The placebo tells the error about another reply. "both" adds GRPO's loss to that of the first kind of errors. The
teacher is the policy as the round begins; a solution is never shown. Success is exact, entropy that of drawn replies.

All arms learn at one rate, fixed on a seed beside those that count.

    python benchmarks/objectives/text_errors.py --seeds 5
"""

from __future__ import annotations

import itertools
import math
import random
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from harness import COLORS, Experiment, Row, Seed, claim, measured, styled
from reader import Codes, Drawn, Reader, School, Study, audit, drawn, hire, said

from nightschool.objectives.clipping import NO_PENALTY
from nightschool.objectives.family import FAMILY, VARIANTS
from nightschool.objectives.sdpo import SDPO, SdpoRule
from nightschool.training.backend import AdamConfig
from nightschool.training.loop import LoopConfig
from nightschool.types import Sample

SETTINGS: dict[str, Any] = {
    "things": 16,
    "skill": [2.4, 1.2],
    "lessons": 12_000,
    "lesson_steps": 900,
    "lesson_batch": 32,
    "requests_per_round": 8,
    "group_size": 8,
    "rounds": 40,
    "epochs": 2,
    "batch_size": 32,
    "target": 0.5,
    "rate": 3e-3,
}
EVERY = 2  # rounds between two looks
KINDS = ("known", "hardly known")
GRPO = next(objective for objective in FAMILY if objective.name == "grpo")
UNPENALIZED = replace(VARIANTS["grpo"], penalty=NO_PENALTY)
REWARD, EXPECTED, WRONG, PLACEBO, BOTH = ARMS = (
    "GRPO",
    "SDPO, what it should be",
    "SDPO, what is wrong",
    "SDPO, placebo",
    "both",
)


def study(arm: str) -> Study:
    config = LoopConfig(
        epochs=SETTINGS["epochs"],
        batch_size=SETTINGS["batch_size"],
        optimizer=AdamConfig(learning_rate=SETTINGS["rate"]),
    )
    if arm == REWARD:
        return Study(GRPO, UNPENALIZED, config)
    return Study(SDPO, SdpoRule(), config, {"reward": (GRPO, UNPENALIZED)} if arm == BOTH else {})


def play(seed: int) -> Seed:
    world = Codes.make(seed, len(KINDS), SETTINGS["things"], skill=SETTINGS["skill"])
    reader = hire(
        "codes",
        world,
        seed,
        School(lessons=SETTINGS["lessons"], steps=SETTINGS["lesson_steps"], batch_size=SETTINGS["lesson_batch"]),
        SETTINGS["skill"],
    )
    found: Seed = {"audit": audits(reader, world, seed)}
    for arm in ARMS:
        found[arm] = learn(reader, world, seed, arm)
    return found


def learn(reader: Reader, world: Codes, seed: int, arm: str) -> list[list[float]]:
    """Generations so far, success on requests of either kind, entropy of a reply in nats; every `EVERY` rounds."""
    chance, parent, course = random.Random(seed), None, study(arm)
    found: list[list[float]] = []
    reader.backend.open(None)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(SETTINGS["rounds"] + 1):
            asked = chance.sample(range(len(world.requests)), SETTINGS["requests_per_round"])
            requests = [request for request in asked for _ in range(SETTINGS["group_size"])]
            prompts = [reader.prompt(world.requests[request]) for request in requests]
            replies = reader.draw(prompts, len(world.reply(0)), seed * 1000 + number)
            if number % EVERY == 0:
                entropy = fmean(sum(reply.entropies) for reply in replies)
                found.append([number * len(replies), *success(reader, world), entropy])
            rows, views = annotated(reader, world, arm, requests, replies)
            if number < SETTINGS["rounds"] and rows:
                parent = course.night(reader, rows, views, parent, Path(folder) / str(number))
    return found


def annotated(
    reader: Reader, world: Codes, arm: str, requests: Sequence[int], replies: Sequence[Drawn]
) -> tuple[list[Sample], list[Sample]]:
    """A round's rows: all of them with rewards where these count; those that failed, with a teacher's views."""
    rows, rated, told = [], [], []
    for n, (request, reply) in enumerate(zip(requests, replies, strict=True)):
        words, prompt = reader.words(reply.ids), reader.prompt(world.requests[request])
        reward = world.reward(request, words)
        rated.append(drawn(f"rated {n}", prompt, reply, reward=reward, policy_version="v", group_id=str(request)))
        text = error(world, request, words, expected=arm != WRONG)
        if text is not None:
            rows.append(drawn(str(n), prompt, reply))
            told.append((request, reply, text))
    rated = rated if len({row.reward for row in rated}) > 1 else []  # else no reply is told from another
    if arm == REWARD:
        return rated, []
    texts = [text for _, _, text in told]
    if arm == PLACEBO:
        random.Random(0).shuffle(texts)
    views = [
        said(row.id, reader.prompt(world.requests[request], text), reply.ids)
        for row, (request, reply, _), text in zip(rows, told, texts, strict=True)
    ]
    return [*rows, *(replace(row, term="reward") for row in rated if arm == BOTH)], views


def error(world: Codes, request: int, words: Sequence[str], expected: bool) -> str | None:
    """What the environment says of a reply, about its first wrong word; `None` of a right one, and of one with
    something else there."""
    for place, (word, wanted) in enumerate(zip(words, world.reply(request), strict=False)):
        if word != wanted:
            if not {word, wanted} <= set(world.codes):
                return None
            code = world.codes.index(wanted if expected else word)
            return world.wanted(place, code) if expected else world.unwanted(place, code)
    return None


def success(reader: Reader, world: Codes) -> list[float]:
    """Exact, by kind."""
    prompts = [reader.prompt(request) for request in world.requests]
    found = reader.chances(prompts, [reader.ids(world.reply(n)) for n in range(len(prompts))])
    return [fmean(found[: SETTINGS["things"]]), fmean(found[SETTINGS["things"] :])]


def audits(reader: Reader, world: Codes, seed: int) -> dict[str, list[float]]:
    """What the untaught policy's own failing replies get right behind either kind of error: alone, told, placebo."""
    requests = [request for request in range(len(world.requests)) for _ in range(4)]
    random.Random(seed).shuffle(requests)
    replies = reader.draw([reader.prompt(world.requests[n]) for n in requests], len(world.reply(0)), seed)
    found = {}
    for name, expected in ((EXPECTED, True), (WRONG, False)):
        texts = [error(world, n, reader.words(one.ids), expected) for n, one in zip(requests, replies, strict=True)]
        told = [(world.requests[n], text, world.reply(n)) for n, text in zip(requests, texts, strict=True) if text]
        heard = audit(reader, *zip(*told, strict=True))
        found[name] = [heard.alone, heard.told, heard.placebo]
    return found


def generations_to(looks: list[list[float]], column: int) -> float:
    """Until the target is first reached, between two looks. Edge: NaN where it is not, or not held at the end."""
    target = SETTINGS["target"]
    if looks[-1][column] < target:
        return math.nan
    for before, after in itertools.pairwise(looks):
        if after[column] >= target > before[column]:
            return before[0] + (target - before[column]) / (after[column] - before[column]) * (after[0] - before[0])
    return 0.0


def rows_of(seeds: list[Seed]) -> list[Row]:
    rows = []
    for name in (EXPECTED, WRONG):
        for column, what in enumerate(("alone", "told its own error", "told another's")):
            rows.append(
                measured(f"{name}: right at the start, {what}", [seed["audit"][name][column] for seed in seeds])
            )
        rows.append(claim(f"{name}: the teacher reads", [s["audit"][name][1] - s["audit"][name][2] for s in seeds]))
    for arm in ARMS:
        for column, kind in enumerate(KINDS, 1):
            rows += [
                measured(f"{arm}, {kind}: success before", [seed[arm][0][column] for seed in seeds]),
                measured(f"{arm}, {kind}: success at the end", [seed[arm][-1][column] for seed in seeds]),
                measured(
                    f"{arm}, {kind}: generations to the target", [generations_to(s[arm], column) for s in seeds], 0
                ),
            ]
        rows.append(measured(f"{arm}: entropy at the end", [seed[arm][-1][3] for seed in seeds]))
    for arm in (EXPECTED, WRONG, BOTH):
        for column, kind in enumerate(KINDS, 1):
            half = len(seeds[0][arm]) // 4
            early = [seed[arm][half][column] - seed[REWARD][half][column] for seed in seeds]
            late = [seed[arm][-1][column] - seed[REWARD][-1][column] for seed in seeds]
            of_grpo = [generations_to(s[arm], column) / generations_to(s[REWARD], column) for s in seeds]
            rows += [
                claim(f"{arm} succeeds more than GRPO, {kind}, after a quarter of the generations", early),
                claim(f"{arm} succeeds more than GRPO, {kind}, at the end", late),
                measured(f"{arm}, {kind}: generations of GRPO's", of_grpo, 2),
            ]
    return rows


def draw(figure: Any, seeds: list[Seed]) -> None:
    """Success over generations for either kind, and entropy."""
    panels = figure.subplots(1, 3)
    titles = (*(f"requests {kind}" for kind in KINDS), "all")
    for axes, column, title in zip(panels, (1, 2, 3), titles, strict=True):
        for color, arm in zip(COLORS, ARMS, strict=False):
            curves = torch.tensor([seed[arm] for seed in seeds])
            for curve in curves:
                axes.plot(curve[:, 0], curve[:, column], color=color, lw=0.5, alpha=0.35)
            axes.plot(curves[0, :, 0], curves[:, :, column].mean(0), color=color, lw=1.6, label=arm)
        styled(axes, "generations", "entropy of a reply, nats" if column == 3 else "success").set_title(
            title, fontsize=9
        )
        axes.set_ylim(0, None if column == 3 else 1)
    panels[1].legend(frameon=False, fontsize=7, loc="upper left")


if __name__ == "__main__":
    Experiment("text_errors", SETTINGS, play, rows_of, draw).main(__doc__)
