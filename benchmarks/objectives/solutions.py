"""Does a teacher who was told the solution teach away the doubt that other requests need?

A request asks for the animal that two relations lead to ("likes hunts cat"). A writer has an idea of the answer. As far
as it doubts it, it says "maybe", its idea, "wait", goes through both relations step by step, and is right 9 times of
10; else it answers at once. It doubts little when it was told the solution, and as much as before when it was told what
is not the solution: that is one rule, doubt being what it leaves to other answers than the likeliest. A tiny
transformer was taught to write like that (`reader.py`). It is trained on requests of one family of relations, never on
those of the other ("abroad"), where its ideas are worse and its steps as good. "Few" is one arm on 8 requests.

Teachers are told the solution, or only that an answer was wrong (of failing replies). They are frozen, or the policy as
each round begins. GRPO has as many replies, and rewards. All replies of a round are drawn by the policy of the time.
Markers are the words "maybe" and "wait"; success, markers and length are those of drawn replies.

All arms learn at one rate, fixed on a seed beside those that count.

    python benchmarks/objectives/solutions.py --seeds 5
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from harness import COLORS, Experiment, Row, Seed, claim, measured, styled
from reader import END, Chances, Drawn, Lesson, Reader, School, Study, drawn, hire, said, taught

from nightschool.curation.hindsight import SHOULD
from nightschool.objectives.clipping import NO_PENALTY
from nightschool.objectives.family import FAMILY, VARIANTS
from nightschool.objectives.sdpo import SDPO, SdpoRule
from nightschool.training.backend import AdamConfig
from nightschool.training.loop import LoopConfig
from nightschool.types import Sample

SETTINGS: dict[str, Any] = {
    "relations": 4,
    "animals": 8,
    "skill": {"home": 2.0, "abroad": 0.7},
    "sure": 0.95,  # of each step, where one goes through the relations
    "doubt": 0.03,  # of what one is told
    "lessons": 12_000,
    "lesson_steps": 1200,
    "lesson_batch": 32,
    "trained": 48,
    "few": 8,
    "requests_per_round": 8,
    "group_size": 8,
    "rounds": 30,
    "epochs": 2,
    "batch_size": 32,
    "abroad": 48,  # requests that are looked at
    "asked": 4,  # replies to each request at a look
    "rate": 3e-3,
}
EVERY = 10
RELATIONS = ("likes", "fears", "hunts", "feeds")
ANIMALS = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen")
MAYBE, WAIT = MARKERS = ("maybe", "wait")
LONGEST = 6  # maybe, an answer, wait, two steps, END
GRPO = next(objective for objective in FAMILY if objective.name == "grpo")


@dataclass(frozen=True, slots=True)
class Chains:
    """Requests "outer inner animal": the answer is outer[inner[animal]].

    Shapes: `relations` (P, A) an animal's number for each, `belief` (P, P, A, A), the writer's chances of each answer.
    Pairs of relations whose numbers add up to something even are at home.
    """

    relations: np.ndarray
    belief: np.ndarray
    sure: float
    doubt: float

    @classmethod
    def make(cls, seed: int, settings: dict[str, Any]) -> Chains:
        rng = np.random.default_rng(seed)
        count, animals = settings["relations"], settings["animals"]
        relations = np.stack([rng.permutation(animals) for _ in range(count)])
        outer, inner, animal = np.indices((count, count, animals))
        right = relations[outer, relations[inner, animal]]
        skill = np.where((outer + inner) % 2 == 0, settings["skill"]["home"], settings["skill"]["abroad"])
        logits = rng.normal(size=(*right.shape, animals)) + skill[..., None] * (np.arange(animals) == right[..., None])
        belief = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        return cls(relations, belief, settings["sure"], settings["doubt"])

    @property
    def words(self) -> Sequence[str]:
        return [*RELATIONS, *ANIMALS, *MARKERS, *SHOULD.split(), *self.unwanted(0).split()]

    def requests(self, home: bool) -> list[tuple[int, int, int]]:
        places = np.ndindex(*self.belief.shape[:3])
        return [place for place in places if ((place[0] + place[1]) % 2 == 0) == home]

    def text(self, request: tuple[int, int, int]) -> str:
        outer, inner, animal = request
        return f"{RELATIONS[outer]} {RELATIONS[inner]} {ANIMALS[animal]}"

    def answer(self, request: tuple[int, int, int]) -> int:
        outer, inner, animal = request
        return int(self.relations[outer, self.relations[inner, animal]])

    def reward(self, request: tuple[int, int, int], reply: Sequence[str]) -> float:
        """Whether the last word before END is the answer, of a reply that is of one of the two forms."""
        match list(reply):
            case [found, end] | ["maybe", _, "wait", _, found, end] if end == END:
                return float(found == ANIMALS[self.answer(request)])
        return 0.0

    def solution(self, request: tuple[int, int, int]) -> str:
        return SHOULD.format(words=ANIMALS[self.answer(request)])

    def unwanted(self, animal: int) -> str:
        return f"it is not {ANIMALS[animal]}"

    def wrong(self, request: Any, reply: Sequence[str]) -> str | None:
        """What is said of a reply that failed; `None` of a right one, and where its last word is no answer."""
        found = reply[-2] if len(reply) > 1 and reply[-1] == END else ""
        if self.reward(request, reply) or found not in ANIMALS or found == ANIMALS[self.answer(request)]:
            return None
        return self.unwanted(ANIMALS.index(found))

    def lesson(self, rng: random.Random) -> Lesson:
        """Half of them without words, a quarter with either kind; a solution that is told may be any."""
        request = tuple(rng.randrange(size) for size in self.belief.shape[:3])
        belief = self.belief[request]
        animals, possible, told = np.arange(belief.size), np.ones(belief.size, dtype=bool), None
        match rng.randrange(4):
            case 0:
                animal = rng.randrange(belief.size)
                possible, told = animals == animal, SHOULD.format(words=ANIMALS[animal])
            case 1:
                animal = rng.choices(range(belief.size), belief)[0]
                possible, told = animals != animal, self.unwanted(animal)
        said, chances = self.written(request, possible, rng)
        return Lesson(self.text(request), told, (*said, END), (*chances, {END: 1.0}))

    def written(self, request: Any, possible: np.ndarray, rng: random.Random) -> tuple[list[str], list[Chances]]:
        """What a writer says who was told which answers are possible. Its doubt is what it leaves to other answers than
        the likeliest; what it was told counts for the answer that it steps to as for the one it has an idea of."""
        outer, inner, animal = request
        belief = self._told(self.belief[request], possible)
        doubt = 1 - float(belief.max())
        chances: list[Chances] = [{MAYBE: doubt, **_chances((1 - doubt) * belief)}]
        said = [_choice(chances[0], rng)]
        if said[0] == MAYBE:
            chances += [_chances(belief), {WAIT: 1.0}, _chances(self._step(inner, animal))]
            said += [_choice(one, rng) for one in chances[1:]]
            chances.append(_chances(self._told(self._step(outer, ANIMALS.index(said[-1])), possible)))
            said.append(_choice(chances[-1], rng))
        return said, chances

    def _step(self, relation: int, animal: int) -> np.ndarray:
        animals = self.relations.shape[1]
        return np.where(
            np.arange(animals) == self.relations[relation, animal], self.sure, (1 - self.sure) / (animals - 1)
        )

    def _told(self, belief: np.ndarray, possible: np.ndarray) -> np.ndarray:
        kept = belief * possible
        return (1 - self.doubt) * kept / kept.sum() + self.doubt * belief


def _chances(values: np.ndarray) -> dict[str, float]:
    return dict(zip(ANIMALS, map(float, values), strict=False))


def _choice(chances: Chances, rng: random.Random) -> str:
    return rng.choices(list(chances), list(chances.values()))[0]


@dataclass(frozen=True, slots=True)
class Arm:
    """What the teacher is told, of which replies, and whether it stays what it was. No words: GRPO."""

    told: str = ""  # "solution" of every reply, or "wrong": of a failing reply, that it was
    frozen: bool = False


ARMS = {
    "GRPO": Arm(),
    "solution, moving teacher": Arm("solution"),
    "solution, frozen teacher": Arm("solution", frozen=True),
    "feedback, moving teacher": Arm("wrong"),
    "feedback, frozen teacher": Arm("wrong", frozen=True),
}
MOVING, FROZEN, FEEDBACK, BOTH = tuple(ARMS)[1:]
FEW = "solution, moving teacher, few requests"


def study(arm: Arm) -> Study:
    config = LoopConfig(
        epochs=SETTINGS["epochs"],
        batch_size=SETTINGS["batch_size"],
        optimizer=AdamConfig(learning_rate=SETTINGS["rate"]),
    )
    if arm.told:
        return Study(SDPO, SdpoRule(), config)
    return Study(GRPO, replace(VARIANTS["grpo"], penalty=NO_PENALTY), config)


def play(seed: int) -> Seed:
    world = Chains.make(seed, SETTINGS)
    school = School(lessons=SETTINGS["lessons"], steps=SETTINGS["lesson_steps"], batch_size=SETTINGS["lesson_batch"])
    reader, teacher = (hire("chains", world, seed, school, [SETTINGS[key] for key in WORLD]) for _ in range(2))
    found: Seed = {"teachers": teachers(reader, world, seed)}
    trained = random.Random(seed).sample(world.requests(home=True), SETTINGS["trained"])
    for name, arm in ARMS.items():
        found[name] = learn(reader, teacher, world, trained, arm, seed)
    found[FEW] = learn(reader, teacher, world, trained[: SETTINGS["few"]], ARMS[MOVING], seed)
    return found


WORLD = ("relations", "animals", "skill", "sure", "doubt")


def learn(reader: Reader, teacher: Reader, world: Chains, trained: list[Any], arm: Arm, seed: int) -> list[list[float]]:
    """Rounds so far, then of trained requests and of those abroad: success, markers and words of a reply."""
    chance, found, parent, course = random.Random(seed), [], None, study(arm)
    abroad = random.Random(seed).sample(world.requests(home=False), SETTINGS["abroad"])
    reader.backend.open(None)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(SETTINGS["rounds"] + 1):
            if number % EVERY == 0:
                looks = [look(reader, world, requests, seed * 1000 + number) for requests in (trained, abroad)]
                found.append([number, *looks[0], *looks[1]])
            asked = chance.sample(trained, SETTINGS["requests_per_round"])
            requests = [request for request in asked for _ in range(SETTINGS["group_size"])]
            replies = reader.draw(
                [reader.prompt(world.text(one)) for one in requests], LONGEST, seed * 1000 + number + 500
            )
            rows, views = annotated(reader, world, arm, requests, replies)
            if arm.frozen:
                rows, views = taught(rows, views, reader, teacher, SdpoRule().top), []
            if number < SETTINGS["rounds"] and rows and (arm.told or len({row.reward for row in rows}) > 1):
                parent = course.night(reader, rows, views, parent, Path(folder) / str(number))
    return found


def annotated(
    reader: Reader, world: Chains, arm: Arm, requests: Sequence[Any], replies: Sequence[Drawn]
) -> tuple[list[Sample], list[Sample]]:
    """A round's rows; where a teacher is told something, those that it is told something of, and its views."""
    rows, views = [], []
    for n, (request, reply) in enumerate(zip(requests, replies, strict=True)):
        words = reader.words(reply.ids)
        reward, prompt = world.reward(request, words), reader.prompt(world.text(request))
        told = arm.told and (world.solution(request) if arm.told == "solution" else world.wrong(request, words))
        if told or not arm.told:
            group = str(requests.index(request))
            rows.append(drawn(str(n), prompt, reply, reward=reward, policy_version="v", group_id=group))
        if told:
            views.append(said(str(n), reader.prompt(world.text(request), told), reply.ids))
    return rows, views


def look(
    reader: Reader, world: Chains, requests: Sequence[Any], seed: int, told: Sequence[str | None] | None = None
) -> list[float]:
    """Success, markers and words of drawn replies to requests, each alone or behind what it is told."""
    prompts = [
        reader.prompt(world.text(request), words)
        for request, words in zip(requests, told or [None] * len(requests), strict=True)
        for _ in range(SETTINGS["asked"])
    ]
    asked = [request for request in requests for _ in range(SETTINGS["asked"])]
    replies = [reader.words(reply.ids) for reply in reader.draw(prompts, LONGEST, seed)]
    return [
        fmean(world.reward(request, words) for request, words in zip(asked, replies, strict=True)),
        fmean(sum(word in MARKERS for word in words) for words in replies),
        fmean(len(words) for words in replies),
    ]


def teachers(reader: Reader, world: Chains, seed: int) -> dict[str, list[float]]:
    """What is seen of the untrained policy at home when it is told something, and abroad when it is not."""
    home, abroad = ([*world.requests(home=where)] for where in (True, False))
    random.Random(seed).shuffle(home)
    solutions = [world.solution(request) for request in home]
    replies = reader.draw([reader.prompt(world.text(request)) for request in home], LONGEST, seed)
    failed = [
        (request, words)
        for request, reply in zip(home, replies, strict=True)
        if (words := world.wrong(request, reader.words(reply.ids)))
    ]
    wrong = [request for request, _ in failed]
    return {
        "home, alone": look(reader, world, home, seed),
        "home, told the solution": look(reader, world, home, seed, solutions),
        "home, told another's solution": look(reader, world, home, seed, [solutions[-1], *solutions[:-1]]),
        "home, failed before": look(reader, world, wrong, seed),
        "home, failed before and told so": look(reader, world, wrong, seed, [words for _, words in failed]),
        "abroad, alone": look(reader, world, abroad, seed),
    }


def rows_of(seeds: list[Seed]) -> list[Row]:
    rows = []
    for where in seeds[0]["teachers"]:
        for column, what in enumerate(("success", "markers", "words")):
            rows.append(measured(f"before, {where}: {what}", [seed["teachers"][where][column] for seed in seeds]))
    for arm in (*ARMS, FEW):
        for column, what in COLUMNS.items():
            rows.append(measured(f"{arm}: {what} at the end", [seed[arm][-1][column] for seed in seeds]))
            rows.append(measured(f"{arm}: {what}, gained", [gained(seed, arm, column) for seed in seeds]))
    for arm in (MOVING, FROZEN, FEEDBACK, BOTH, FEW):
        rows.append(claim(f"{arm}: success at home rises", [gained(seed, arm, 1) for seed in seeds]))
        for column in (2, 5, 4):
            rows.append(claim(f"{arm}: {COLUMNS[column]} falls", [-gained(seed, arm, column) for seed in seeds]))
    for better, worse in ((FROZEN, MOVING), (FEEDBACK, MOVING), (BOTH, FROZEN), (BOTH, FEEDBACK), (FEW, MOVING)):
        for column in (5, 4):
            kept = [gained(seed, better, column) - gained(seed, worse, column) for seed in seeds]
            rows.append(claim(f"{better}: keeps more {COLUMNS[column]} than {worse}", kept))
    return rows


COLUMNS = {1: "success at home", 2: "markers at home", 4: "success abroad", 5: "markers abroad", 6: "words abroad"}


def gained(seed: Seed, arm: str, column: int) -> float:
    return seed[arm][-1][column] - seed[arm][0][column]


def draw(figure: Any, seeds: list[Seed]) -> None:
    """Success at home and abroad and markers abroad over rounds."""
    panels = figure.subplots(1, 3)
    for axes, column in zip(panels, (1, 4, 5), strict=True):
        for color, name in zip(COLORS, ARMS, strict=False):
            curves = torch.tensor([seed[name] for seed in seeds])
            for curve in curves:
                axes.plot(curve[:, 0], curve[:, column], color=color, lw=0.5, alpha=0.35)
            axes.plot(curves[0, :, 0], curves[:, :, column].mean(0), color=color, lw=1.6, label=name)
        styled(axes, "rounds", COLUMNS[column]).set_ylim(0, 2 if column == 5 else 1)
    panels[0].legend(frameon=False, fontsize=7)


if __name__ == "__main__":
    Experiment("solutions", SETTINGS, play, rows_of, draw).main(__doc__)
