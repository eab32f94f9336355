"""Three tasks in sequence, taught by demonstrations: what is kept of the earlier ones, and of what was known before?

A reader (`reader.py`) answers four kinds of questions about 8 things in words of its own. It knows the colors, and how
to word a reply "briefly" or "politely" where that is asked; of desks, days and shelves it knows nothing: one answer of
four is right. Where it is shown a demonstration it takes the answer and keeps its own words. An expert, whose words are
not the model's, demonstrates the right answers to 24 requests of one task, then of the next, then of the third. Three
ways to learn from the same demonstrations, each from the adapter that the task before left:

    SFT                 `objectives.sft` on the demonstrations
    SFT, own words      the same on replies that the model draws where it is shown them, fresh in each window
    self-distillation   `objectives.sdpo` on the policy's own replies, fresh in each window; the teacher is the policy
                        that the window starts from, who is shown the demonstration

All take as many steps on as many rows, at each of the same rates. Success is the probability of the right answer,
however worded, to the same questions in a wording that nobody trained on; it is computed, not sampled. A lower rate
forgets less and learns less, so what is kept is compared where the newest tasks are learned equally well. Settings were
fixed on a seed that is not among those reported.

    python benchmarks/objectives/three_tasks.py --seeds 5
"""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from harness import COLORS, Experiment, Row, Seed, claim, measured, styled
from reader import END, Lesson, Reader, School, Study, hire, said

from nightschool.curation.hindsight import SHOULD
from nightschool.objectives.sdpo import SDPO, SdpoRule
from nightschool.objectives.sft import SFT, SftRule
from nightschool.training.backend import AdamConfig
from nightschool.training.loop import LoopConfig
from nightschool.types import Sample

SETTINGS: dict[str, Any] = {
    "rates": [5e-4, 1e-3, 2e-3],
    "windows": 8,  # of a task: fresh replies, and a new teacher
    "steps": 12,  # of a window, each on all rows
    "hidden": 64,
    "layers": 2,
    "lessons": 12_000,
    "lesson_steps": 1000,
    "learned": 0.5,  # success on the newest tasks, where arms are compared
}
THINGS = ("parcel", "lamp", "chair", "kettle", "piano", "tent", "clock", "mirror")
# The last wording is that of the exam.
QUESTIONS = {
    "desk": ("which desk takes the {}", "who looks after the {}", "who is asked for the {}", "where goes the {}"),
    "day": ("when does the {} leave", "what day is the {} due", "when is the {} here", "how soon comes the {}"),
    "shelf": ("what shelf holds the {}", "where is the {} kept", "where stands the {}", "in which place lies the {}"),
    "color": ("what color has the {}", "how does the {} look", "which paint has the {}", "how is the {} painted"),
}
ANSWERS = {
    "desk": ("north", "south", "east", "west"),
    "day": ("monday", "tuesday", "friday", "sunday"),
    "shelf": ("oak", "pine", "steel", "glass"),
    "color": ("red", "blue", "green", "white"),
}
*TASKS, KNOWN = QUESTIONS
LIVE, EXAM = slice(0, 3), slice(3, 4)
OWN = ("it is {}", "{} i think", "that would be {}")
ASKED = {"briefly": "{}", "politely": "{} at your service"}
EXPERT = "answer : {} ."
FORMS = (*OWN, *ASKED.values(), EXPERT)
LONGEST = 6  # words of a reply, and its end
DOUBT = 0.03  # of a demonstration, and of what is known
DEMONSTRATED, REWORDED, DENSE = "SFT", "SFT, own words", "self-distillation"
RULES: Mapping[str, Any] = {
    DEMONSTRATED: (SFT, SftRule()),
    REWORDED: (SFT, SftRule()),
    DENSE: (SDPO, SdpoRule()),
}


@dataclass(frozen=True, slots=True)
class Request:
    text: str
    right: str
    form: str | None = None  # that was asked for

    @property
    def demonstration(self) -> str:
        return SHOULD.format(words=EXPERT.format(self.right))


@dataclass(frozen=True, slots=True)
class Office:
    """The world: the right answer to each question about each thing."""

    right: Mapping[tuple[str, str], str]

    @classmethod
    def make(cls, seed: int) -> Office:
        rng = random.Random(seed)
        return cls({(kind, thing): rng.choice(ANSWERS[kind]) for kind in QUESTIONS for thing in THINGS})

    @property
    def words(self) -> Sequence[str]:
        texts = [*THINGS, *FORMS, *ASKED, SHOULD.format(words="")]
        texts += [text for group in (*QUESTIONS.values(), *ANSWERS.values()) for text in group]
        return [word for text in texts for word in text.format("").split()]

    def requests(self, kind: str, wordings: slice, asked: str | None = None) -> list[Request]:
        return [
            Request(
                " ".join(filter(None, (words.format(thing), asked))), self.right[kind, thing], asked and ASKED[asked]
            )
            for words in QUESTIONS[kind][wordings]
            for thing in THINGS
        ]

    def lesson(self, rng: random.Random) -> Lesson:
        """Demonstrations show any answer in any form, so that they have to be read; those of what is known as well."""
        kind = rng.choice((*TASKS, KNOWN, KNOWN))
        asked = rng.choice((None, *ASKED))
        told, belief = None, dict.fromkeys(ANSWERS[kind], 1.0)
        request = rng.choice(self.requests(kind, slice(None), asked))
        if kind == KNOWN:
            belief = believing(kind, request.right)
        if kind != KNOWN and rng.random() < 0.6:
            shown = rng.choice(ANSWERS[kind])
            told, belief = SHOULD.format(words=rng.choice(FORMS).format(shown)), believing(kind, shown)
        forms = [ASKED[asked]] if asked else OWN
        replies = {(*form.format(answer).split(), END): weight for answer, weight in belief.items() for form in forms}
        reply = rng.choices(list(replies), list(replies.values()))[0]
        return Lesson(request.text, told, reply, tuple(chances(replies, reply[:place]) for place in range(len(reply))))


def believing(kind: str, answer: str) -> dict[str, float]:
    return {one: DOUBT / 4 + (1 - DOUBT) * (one == answer) for one in ANSWERS[kind]}


def chances(replies: Mapping[tuple[str, ...], float], before: tuple[str, ...]) -> dict[str, float]:
    """Of the next word, from weighted replies and the words that were said."""
    going = {reply: weight for reply, weight in replies.items() if reply[: len(before)] == before}
    found: dict[str, float] = {}
    for reply, weight in going.items():
        word = reply[len(before)]
        found[word] = found.get(word, 0.0) + weight / sum(going.values())
    return found


def hired(office: Office, seed: int) -> Reader:
    school = School(SETTINGS["hidden"], SETTINGS["layers"], SETTINGS["lessons"], SETTINGS["lesson_steps"])
    return hire("office", office, seed, school)


def success(reader: Reader, requests: Sequence[Request], shown: bool = False) -> float:
    """The probability of the right answer: in the form that was asked for, or in any."""
    asked = [(request, form) for request in requests for form in ([request.form] if request.form else FORMS)]
    prompts = [reader.prompt(request.text, request.demonstration if shown else None) for request, _ in asked]
    replies = [reader.ids((*form.format(request.right).split(), END)) for request, form in asked]
    return sum(reader.chances(prompts, replies)) / len(requests)


def exam(reader: Reader, office: Office) -> dict[str, float]:
    """Success on each task, on what was known before (plainly asked and with a form), and how well a teacher reads."""
    found = {kind: success(reader, office.requests(kind, EXAM)) for kind in (*TASKS, KNOWN)}
    found["form"] = success(reader, [one for asked in ASKED for one in office.requests(KNOWN, EXAM, asked)])
    found["teacher"] = success(reader, [one for kind in TASKS for one in office.requests(kind, EXAM)], shown=True)
    return found


def play(seed: int) -> Seed:
    office = Office.make(seed)
    reader = hired(office, seed)
    found: Seed = {"before": exam(reader, office), "arms": {}}
    for arm in RULES:
        found["arms"][arm] = {str(rate): sequence(reader, office, arm, rate, seed) for rate in SETTINGS["rates"]}
    return found


def sequence(reader: Reader, office: Office, arm: str, rate: float, seed: int) -> list[dict[str, float]]:
    """The exam after each task."""
    found, parent = [], None
    reader.backend.open(None)
    with tempfile.TemporaryDirectory() as folder:
        for number, kind in enumerate(TASKS):
            for window in range(SETTINGS["windows"]):
                here = Path(folder) / f"{number}-{window}"
                rows, views = material(reader, office.requests(kind, LIVE), arm, 1000 * seed + 100 * number + window)
                parent = study(arm, rate).night(reader, rows, views, parent, here)
            found.append(exam(reader, office))
    return found


def material(reader: Reader, requests: Sequence[Request], arm: str, seed: int) -> tuple[list[Sample], list[Sample]]:
    """Rows of a window, by the adapter that is open, and what a teacher sees of them."""
    alone = [reader.prompt(request.text) for request in requests]
    shown = [reader.prompt(request.text, request.demonstration) for request in requests]
    if arm == DEMONSTRATED:
        replies = [reader.ids((*EXPERT.format(request.right).split(), END)) for request in requests]
    else:
        replies = [one.ids for one in reader.draw(shown if arm == REWORDED else alone, LONGEST, seed)]
    rows, views = (
        [said(str(n), *pair) for n, pair in enumerate(zip(prompts, replies, strict=True))] for prompts in (alone, shown)
    )
    return rows, views if RULES[arm][0] is SDPO else []


def study(arm: str, rate: float) -> Study:
    """All rows in each step."""
    config = LoopConfig(
        epochs=SETTINGS["steps"], batch_size=1000, checkpoint_every=10**9, optimizer=AdamConfig(learning_rate=rate)
    )
    objective, rule = RULES[arm]
    return Study(objective, rule, config)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Means of success: on each task right after it was taught; at the end on the two earlier ones, how far these fell
    since they were taught, on what the model knew before, and on all three."""

    learned: float
    earlier: float
    forgotten: float
    known: float
    all_three: float

    @classmethod
    def of(cls, exams: Sequence[Mapping[str, float]]) -> Outcome:
        last, taught = exams[-1], [one[kind] for one, kind in zip(exams, TASKS, strict=True)]
        earlier = fmean(last[kind] for kind in TASKS[:-1])
        return cls(
            fmean(taught),
            earlier,
            fmean(taught[:-1]) - earlier,
            (last[KNOWN] + last["form"]) / 2,
            fmean(last[kind] for kind in TASKS),
        )


def outcomes(seed: Seed, arm: str) -> list[Outcome]:
    """Untaught, then at each rate."""
    return [Outcome.of([seed["before"]] * len(TASKS)), *map(Outcome.of, seed["arms"][arm].values())]


def kept(seed: Seed, arm: str, part: str) -> float:
    """A part at the lowest rate, between two of the sweep, that learns the newest tasks so well. NaN: none does."""
    points = outcomes(seed, arm)
    for before, after in pairwise(points):
        if before.learned < SETTINGS["learned"] <= after.learned:
            share = (SETTINGS["learned"] - before.learned) / (after.learned - before.learned)
            return getattr(before, part) + share * (getattr(after, part) - getattr(before, part))
    return math.nan


def best(seeds: list[Seed], arm: str) -> int:
    """The place of the rate that ends best on all three tasks, over all seeds."""
    return max(
        range(1, len(SETTINGS["rates"]) + 1), key=lambda at: fmean(outcomes(seed, arm)[at].all_three for seed in seeds)
    )


def rows_of(seeds: list[Seed]) -> list[Row]:
    rows = [measured("before: known", [outcomes(seed, DENSE)[0].known for seed in seeds])]
    rows.append(measured("before: a teacher reads", [seed["before"]["teacher"] for seed in seeds]))
    for arm in RULES:
        for at, rate in enumerate(SETTINGS["rates"], 1):
            rows += [
                measured(
                    f"{arm}, rate {rate:g}: {PARTS[part]}", [getattr(outcomes(seed, arm)[at], part) for seed in seeds]
                )
                for part in PARTS
            ]
        rows += [
            measured(
                f"{arm}, newest learned to {SETTINGS['learned']:g}: {PARTS[part]}",
                [kept(seed, arm, part) for seed in seeds],
            )
            for part in KEPT
        ]
    for better, worse in CLAIMS:
        for part in KEPT:
            differences = [kept(seed, better, part) - kept(seed, worse, part) for seed in seeds]
            rows.append(claim(f"{better} keeps more than {worse}: {PARTS[part]}", differences))
        at, other = best(seeds, better), best(seeds, worse)
        differences = [outcomes(seed, better)[at].all_three - outcomes(seed, worse)[other].all_three for seed in seeds]
        rates = SETTINGS["rates"]
        name = f"{better} at {rates[at - 1]:g} ends better on all three than {worse} at {rates[other - 1]:g}"
        rows.append(claim(name, differences))
    return rows


def draw(figure: Any, seeds: list[Seed]) -> None:
    """Along the rates, what is kept of earlier tasks and of what was known, over how well the newest are learned."""
    axes = figure.subplots(1, 2, sharey=True)
    for color, arm in zip(COLORS, RULES, strict=False):
        for place, part in enumerate(KEPT):
            points = [
                [fmean(getattr(outcomes(seed, arm)[at], name) for seed in seeds) for name in ("learned", part)]
                for at in range(len(SETTINGS["rates"]) + 1)
            ]
            axes[place].plot(*zip(*points, strict=True), "o-", color=color, lw=1.4, ms=3, label=arm)
    newest = "newest task, right after it was taught"
    styled(axes[0], newest, PARTS["earlier"]).legend(frameon=False, fontsize=8)
    styled(axes[1], newest, PARTS["known"])


PARTS = {
    "learned": "newest task",
    "earlier": "earlier tasks at the end",
    "forgotten": "their loss since they were taught",
    "known": "known before, at the end",
    "all_three": "all three tasks at the end",
}
KEPT = ("earlier", "known")
CLAIMS = ((DENSE, DEMONSTRATED), (REWORDED, DEMONSTRATED), (DENSE, REWORDED))

if __name__ == "__main__":
    Experiment("three_tasks", SETTINGS, play, rows_of, draw).main(__doc__)
