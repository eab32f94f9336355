"""Does the audit let a teacher who reads feedback teach, and refuse one who does not? And does what it admits help?

A tiny transformer was taught 32 requests with one right reply each, three words out of eight (`objectives/reader.py`).
The reader was also taught to heed what is said of an earlier reply, its deaf twin heard the same words and never
learned to. Each night, customers get 256 replies. Every one says what one word, any of the three, should be; most leave
a thumb for the whole reply, and 5 % of the thumbs are wrong. Nothing is replayed. The audit (`training.teaching`) sees
words and thumbs, and a judge that knows whether a drawn reply has the word that was asked for. SDPO then learns from
the words alone: from what was admitted, or from all of it whatever the audit says. Success is exact.

All arms learn at one rate, that of `objectives/text_errors.py`; nothing was tried before.

    python benchmarks/feedback/teacher_audit.py --seeds 5
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1] / "objectives"))
from harness import COLORS, Experiment, Row, Seed, claim, measured, styled
from reader import Codes, Reader, School, Study, drawn, hire, said

from nightschool.curation.dataset import Rows, Told
from nightschool.curation.hindsight import PLAIN, TEXTS, another_s
from nightschool.objectives.sdpo import SDPO, SdpoRule
from nightschool.objectives.teacher import Audit, AuditRule
from nightschool.training.backend import AdamConfig
from nightschool.training.loop import LoopConfig
from nightschool.training.teaching import Class, audit_teacher
from nightschool.types import Sample

SETTINGS: dict[str, Any] = {
    "kinds": 2,
    "things": 16,
    "skill": [3.5, 2.4],
    "lessons": 12_000,
    "lesson_steps": 900,
    "lesson_batch": 32,
    "nights": 3,
    "replies": 8,  # to each request
    "thumbs": 0.6,
    "flipped": 0.05,
    "epochs": 2,
    "batch_size": 32,
    "rate": 3e-3,
}
CLIP = 5.0
READER, ALL, DEAF, ANYWAY = ARMS = (
    "reader, as audited",
    "reader, all words",
    "deaf twin, as audited",
    "deaf twin, taught anyway",
)
EARS = {READER: 0.03, ALL: 0.03, DEAF: 1.0, ANYWAY: 1.0}  # how much of what it is told a writer doubts


def play(seed: int) -> Seed:
    world = Codes.make(seed, SETTINGS["kinds"], SETTINGS["things"], skill=SETTINGS["skill"])
    school = School(lessons=SETTINGS["lessons"], steps=SETTINGS["lesson_steps"], batch_size=SETTINGS["lesson_batch"])
    found: Seed = {}
    for arm in ARMS:
        doubted = replace(world, doubt=EARS[arm])
        reader = hire("audited codes", doubted, seed, school, [SETTINGS["skill"], EARS[arm]])
        found[arm] = live(reader, doubted, seed, audited=arm in (READER, DEAF))
    return found


def live(reader: Reader, world: Codes, seed: int, audited: bool) -> dict[str, Any]:
    """Success before each night and after the last; of each night what the audit found, and how many rows it taught."""
    optimizer = AdamConfig(learning_rate=SETTINGS["rate"])
    config = LoopConfig(epochs=SETTINGS["epochs"], batch_size=SETTINGS["batch_size"], optimizer=optimizer)
    study, parent = Study(SDPO, SdpoRule(), config), None
    reader.backend.open(None)
    nights: list[dict[str, Any]] = []
    successes = [success(reader, world)]
    with tempfile.TemporaryDirectory() as folder:
        for night in range(SETTINGS["nights"]):
            lesson = heard(reader, world, seed * 100 + night)
            found = audit_teacher(reader.backend, lesson)
            taught = [row for row in lesson.rows.train if not audited or _admits(found, row)]
            views = [view for view in lesson.rows.teachers if view.id in {row.id for row in taught}]
            if taught:
                rows = [replace(row, reward=None) for row in taught]
                parent = study.night(reader, rows, views, parent, Path(folder) / str(night))
            successes.append(success(reader, world))
            nights.append({**found.report, "taught": len(taught)})
    return {"success": successes, "nights": nights}


def heard(reader: Reader, world: Codes, seed: int) -> Class:
    """A day: replies to all requests by the adapter that is open, with words about them, and thumbs for most."""
    chance = random.Random(seed)
    requests = [request for request in range(len(world.requests)) for _ in range(SETTINGS["replies"])]
    prompts = [reader.prompt(world.requests[request]) for request in requests]
    replies = reader.backend.draw(prompts, len(world.reply(0)), seed)
    asked = [chance.randrange(len(world.right[0])) for _ in requests]  # the place that the words are about
    words = [world.wanted(place, int(world.right[n, place])) for n, place in zip(requests, asked, strict=True)]
    names, people = [str(n) for n in range(len(requests))], [f"customer {n // 2}" for n in range(len(requests))]
    others = another_s(names, people)
    students: list[Sample] = []
    told: dict[str, Told] = {}
    for name, request, prompt, reply in zip(names, requests, prompts, replies, strict=True):
        good = world.reward(request, reader.words(reply.ids)) == 1.0
        thumb = None if chance.random() > SETTINGS["thumbs"] else float(good != (chance.random() < SETTINGS["flipped"]))
        students.append(drawn(name, prompt, reply, reward=thumb, policy_version="v"))  # type: ignore[arg-type]
        told[name] = Told(name, people[int(name)], (TEXTS, PLAIN))

    def behind(sources: Sequence[int | None]) -> tuple[Sample, ...]:
        return tuple(
            said(name, reader.prompt(world.requests[requests[int(name)]], words[source]), replies[int(name)].ids)
            for name, source in zip(names, sources, strict=True)
            if source is not None
        )

    def judge(name: str, drawn: Sequence[Sequence[int]]) -> list[float]:
        place, wanted = asked[int(name)], words[int(name)].split()[-1]
        return [float(len(ids) > place and reader.words(ids)[place] == wanted) for ids in drawn]

    rows = Rows(tuple(students), (), behind(range(len(names))), behind(others))
    return Class(rows, told, AuditRule(), CLIP, judge, seed)


def success(reader: Reader, world: Codes) -> float:
    prompts = [reader.prompt(request) for request in world.requests]
    return fmean(reader.chances(prompts, [reader.ids(world.reply(n)) for n in range(len(prompts))]))


def _admits(found: Audit, row: Sample) -> bool:
    return found.against is None and row.id not in found.left_out


def rows_of(seeds: list[Seed]) -> list[Row]:
    rows: list[Row] = []
    for arm in (READER, DEAF):
        first = [seed[arm]["nights"][0] for seed in seeds]
        for key, title in (("own", "behind its own words"), ("beyond_placebo", "beside another's")):
            areas = [_area(night, key) for night in first]
            rows.append(measured(f"{arm}: first night, area {title}", areas))
        lifts = [night["lift"]["all"]["own"]["value"] if _lifted(night) else float("nan") for night in first]
        rows.append(measured(f"{arm}: first night, lift", lifts))
        passed = [sum(night["passed"] for night in seed[arm]["nights"]) for seed in seeds]
        rows.append(_counted(f"{arm}: nights let through", sum(passed), len(seeds) * SETTINGS["nights"]))
        rows.append(_first(arm, [night["passed"] for night in first], wanted=arm == READER))
        rows.append(measured(f"{arm}: rows taught in the first night", [night["taught"] for night in first], 0))
    for arm in ARMS:
        for place, title in ((0, "before"), (1, "after one night"), (-1, "at the end")):
            rows.append(measured(f"{arm}: success {title}", [seed[arm]["success"][place] for seed in seeds]))
    for arm, place, title in ((READER, 1, "one night"), (READER, -1, "all nights"), (ALL, -1, "all nights")):
        gains = [seed[arm]["success"][place] - seed[arm]["success"][0] for seed in seeds]
        rows.append(claim(f"{arm}: success rises over {title}", gains))
    lost = [seed[DEAF]["success"][-1] - seed[ANYWAY]["success"][-1] for seed in seeds]
    rows.append(claim("refusing the deaf twin keeps more success than teaching it", lost))
    checked = [seed[READER]["success"][-1] - seed[ALL]["success"][-1] for seed in seeds]
    rows.append(measured("reader: as audited minus all words, success at the end", checked))
    return rows


def _area(night: dict[str, Any], key: str) -> float:
    return night["separation"]["all"][key]["area"]["value"] if "separation" in night else float("nan")


def _lifted(night: dict[str, Any]) -> bool:
    return isinstance(night.get("lift"), dict)


def _counted(name: str, count: int, total: int) -> Row:
    return Row(name, f"{count} of {total}")


def _first(arm: str, passed: Sequence[bool], wanted: bool) -> Row:
    right = sum(one == wanted for one in passed)
    verb = "accepted" if wanted else "refused"
    return Row(
        f"{arm}: {verb} in the first night", f"{right} of {len(passed)}", f"= {len(passed)}", right == len(passed)
    )


def draw(figure: Any, seeds: list[Seed]) -> None:
    """The areas of the first night, and success over nights."""
    left, right = figure.subplots(1, 2)
    for place, arm in enumerate((READER, DEAF)):
        for shift, key in ((-0.12, "own"), (0.12, "beyond_placebo")):
            for number, seed in enumerate(seeds):
                area = seed[arm]["nights"][0].get("separation", {}).get("all", {}).get(key, {}).get("area")
                if area is None:
                    continue
                x = place + shift + 0.03 * (number - len(seeds) / 2)
                color = COLORS[0] if key == "own" else COLORS[1]
                left.plot([x, x], [area["low"], area["high"]], color=color, lw=1)
                left.plot([x], [area["value"]], "o", color=color, ms=3)
    left.axhline(0.5, color=COLORS[4], lw=0.8)
    styled(left, "", "accepted above rejected").set_xticks([0, 1], ["reader", "deaf twin"])
    left.set_title("own words (blue), beside another's (red)", fontsize=8)
    for color, arm in zip(COLORS, ARMS, strict=False):
        curves = torch.tensor([seed[arm]["success"] for seed in seeds])
        for curve in curves:
            right.plot(curve, color=color, lw=0.5, alpha=0.35)
        right.plot(curves.mean(0), color=color, lw=1.6, label=arm)
    styled(right, "nights", "success").set_ylim(0, 1)
    right.legend(frameon=False, fontsize=7)


if __name__ == "__main__":
    Experiment("teacher_audit", SETTINGS, play, rows_of, draw, group="feedback").main(__doc__)
