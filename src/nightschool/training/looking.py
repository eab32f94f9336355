"""Looks at a policy while it is distilled: drawn replies, kept beside the run, which finds its start when resumed."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean

from nightschool.errors import InputError, MissingError
from nightschool.rendering.renderer import Renderer
from nightschool.training.backend import Backend, Drawn
from nightschool.training.epistemic import Look, Reply, WatchRule, alarms, look_at, reason_to_stop, told
from nightschool.training.loop import Inspection
from nightschool.types import Json, Sample

SHIPPED = Path(__file__).with_name("questions.jsonl")
KEPT = "looks.jsonl"


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt by its tokens; `accept`: any of these words makes a reply right, none: nobody can say."""

    id: str
    prompt: tuple[int, ...]
    accept: tuple[str, ...] = ()

    def judge(self, text: str) -> bool | None:
        if not self.accept:
            return None
        lower = text.casefold()
        return any(re.search(rf"(?<!\w){re.escape(word.casefold())}(?!\w)", lower) for word in self.accept)


@dataclass(slots=True)
class Looker:
    """Draws the same prompts with the same seeds at each look. See `training.loop.Inspector`."""

    backend: Backend
    renderer: Renderer
    rule: WatchRule
    home: Sequence[Question]
    elsewhere: Sequence[Question]
    path: Path
    looks: dict[int, Look] = field(default_factory=dict)
    raised: dict[int, list[str]] = field(default_factory=dict)
    stopped: str | None = None

    def begin(self) -> None:
        """Look at the start of the run, unless it was seen before; later looks are read again, too."""
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            kept = json.loads(line)
            self.looks[kept["look"]["step"]] = Look(**kept["look"])
            self.raised[kept["look"]["step"]] = kept["alarms"]
        if 0 not in self.looks:
            self._keep(self._look(0), [])

    def after(self, step: int, last: bool, drift: float | None) -> Inspection | None:
        """What a look after a step found; `None` where none is due. `last`: of its window."""
        if step % self.rule.every and not last:
            return None
        now, base = self._look(step), self.looks[0]
        signs = alarms(base, now, drift, self.rule)
        self._keep(now, signs)
        self.stopped = reason_to_stop(base, now, self.rule)
        return Inspection({**now.metrics(), "alarms": float(len(signs))}, self.stopped)

    def report(self) -> Json:
        return told([self.looks[step] for step in sorted(self.looks)], self.stopped, self.raised, self.rule)

    def _look(self, step: int) -> Look:
        asked = [question for question in (*self.home, *self.elsewhere) for _ in range(self.rule.draws)]
        drawn = self.backend.draw([question.prompt for question in asked], self.rule.longest, seed=0)
        replies = [self._reply(question, one) for question, one in zip(asked, drawn, strict=True)]
        edge = len(self.home) * self.rule.draws
        return look_at(step, replies[:edge], replies[edge:])

    def _reply(self, question: Question, one: Drawn) -> Reply:
        text = self.renderer.tokenizer.decode(one.ids, skip_special_tokens=True)
        confidence = math.exp(fmean(one.logprobs))
        return Reply(question.id, text, len(one.ids), fmean(one.entropies), confidence, question.judge(text))

    def _keep(self, look: Look, signs: list[str]) -> None:
        """Edge: a step that is taken again after a resume is looked at again; its newest line counts."""
        self.looks[look.step], self.raised[look.step] = look, signs
        with self.path.open("a") as handle:
            handle.write(json.dumps({"look": asdict(look), "alarms": signs}) + "\n")


def own_prompts(samples: Sequence[Sample], count: int) -> list[Question]:
    """The prompts of rows, each once, in an order that only their tokens decide."""
    prompts = {sample.token_ids[: sample.completion_mask.index(True)] for sample in samples}
    named = sorted((hashlib.sha256(str(prompt).encode()).hexdigest()[:16], prompt) for prompt in prompts)
    return [Question(name, prompt) for name, prompt in named[:count]]


def read_questions(path: str, renderer: Renderer) -> list[Question]:
    """The questions of another kind, of a file or the shipped ones.

    Raises:
        MissingError, InputError: the file cannot be used.
    """
    file = Path(path) if path else SHIPPED
    if not file.is_file():
        raise MissingError(f"There is no file {path}.", "Its questions are to be asked.", "Correct watch.questions.")
    found = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            prompt = tuple(renderer.prompt_ids(tuple(row["prompt"])))
            found.append(Question(str(row.get("id", number)), prompt, tuple(map(str, row["accept"]))))
        except (ValueError, KeyError, TypeError) as error:
            why = "A line is an object with `prompt`, messages, and `accept`, words that make an answer right."
            raise InputError(f"Line {number} of {file.name} is no question.", why, "Correct it.") from error
    return found
