"""The audit of a run's teacher: its rows scored three times, a few of them drawn, and what became of each row."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from nightschool.curation.dataset import Line, Rows, Told
from nightschool.objectives.loss import REPLIES
from nightschool.objectives.teacher import (
    REFUSED,
    TEMPLATES,
    UNPROVEN,
    Audit,
    AuditRule,
    Item,
    Judged,
    audit,
    same_but_words,
)
from nightschool.training.backend import Backend
from nightschool.training.loop import Course, as_seen, sampled_tokens
from nightschool.types import LedgerState, Sample
from nightschool.valuation.likeness import rouge_l

KEPT = "audit.json"

Judge = Callable[[str, Sequence[Sequence[int]]], Sequence[float] | None]
"""How far replies, by their tokens, do what was said about a row: each within 0 and 1, `None` where it cannot say."""


@dataclass(frozen=True, slots=True)
class Class:
    """The rows that a teacher is to teach from, and what is known of them. `clip`: nats, as in the loss."""

    rows: Rows
    told: Mapping[str, Told]
    rule: AuditRule
    clip: float
    judge: Judge | None = None
    seed: int = 0


def audit_teacher(backend: Backend, lesson: Class) -> Audit:
    """What the adapter that is open makes of the rows' words, before any gradient. Rows without a placebo, all words
    being one person's, cannot be audited and are left out."""
    students = {row.id: row for row in lesson.rows.train}
    teachers = {view.id: view for view in lesson.rows.teachers}
    placebos = {view.id: view for view in lesson.rows.placebos}
    odd = {name for name in teachers if not same_but_words(students[name], teachers[name])}
    chosen = [students[name] for name in teachers if name in placebos and name not in odd]
    behind = [[views[row.id] for row in chosen] for views in (teachers, placebos)]
    alone = backend.forward(chosen)
    told, placebo = (as_seen(chosen, views, backend.forward(views)) for views in behind)
    judged = _judged(backend, lesson, chosen, behind)
    items = [
        Item(
            row.id,
            lesson.told[row.id].principal,
            lesson.told[row.id].slices,
            None if row.reward is None or row.reward == 0.5 else row.reward > 0.5,
            *(tuple(x for x in scores if x is not None) for scores in three),
            judged=judged.get(row.id),
        )
        for row, *three in zip(chosen, alone, told, placebo, strict=True)
    ]
    found = audit(items, lesson.rule, lesson.clip)
    alien = dict.fromkeys(sorted(teachers.keys() - {row.id for row in chosen}), UNPROVEN) | dict.fromkeys(
        odd, TEMPLATES
    )
    left_out = {**found.left_out, **alien}
    counted = {**found.report.get("left_out", {}), **({TEMPLATES: len(odd)} if odd else {})}
    return replace(found, left_out=left_out, report={**found.report, "left_out": counted})


def corrected(told: Mapping[str, Told], spell: Callable[[Sequence[int]], str]) -> Judge:
    """A judge of rows that somebody corrected: the overlap of words (ROUGE-L) with what it should have been."""

    def judge(name: str, replies: Sequence[Sequence[int]]) -> list[float] | None:
        wanted = told[name].wanted
        return None if wanted is None else [rouge_l(spell(reply).split(), wanted.split()) for reply in replies]

    return judge


def apply(found: Audit, course: Course, lines: Sequence[Line]) -> tuple[Course, list[Line]]:
    """The course without the rows that are left out, and the ledger that says why."""
    train = tuple(row for row in course.train if row.id not in found.left_out)
    teachers = tuple(view for view in course.teachers if view.id not in found.left_out)
    held = [
        replace(line, state=LedgerState.HELD, reason=found.left_out[line.exchange_id])
        if line.exchange_id in found.left_out
        else line
        for line in lines
    ]
    return replace(course, train=train, teachers=teachers), held


def refused_lines(found: Audit, lines: Sequence[Line]) -> list[Line]:
    """The ledger of a run whose teacher may not teach: nothing of it trained."""
    why = REFUSED if found.enough else UNPROVEN
    return [
        replace(line, state=LedgerState.HELD, reason=found.left_out.get(line.exchange_id, why))
        if line.state == LedgerState.TRAINED
        else line
        for line in lines
    ]


def keep(folder: Path, found: Audit) -> None:
    """Write an audit beside its run: one that is resumed does not audit again."""
    part = folder / f"{KEPT}.part"
    part.write_text(json.dumps(asdict(found), indent=1) + "\n")
    part.rename(folder / KEPT)


def kept(folder: Path) -> Audit | None:
    path = folder / KEPT
    return Audit(**json.loads(path.read_text())) if path.exists() else None


def _judged(
    backend: Backend, lesson: Class, rows: Sequence[Sample], behind: Sequence[Sequence[Sample]]
) -> dict[str, Judged]:
    """Replies drawn to the first rows that the judge can say something about, without words and behind either kind."""
    judge, rule = lesson.judge, lesson.rule
    if judge is None or REPLIES not in backend.outputs:
        return {}
    places = [place for place, row in enumerate(rows) if judge(row.id, [sampled_tokens(row)]) is not None][
        : rule.judged
    ]
    longest = max((len(sampled_tokens(rows[place])) for place in places), default=0) + 1
    scores: list[list[Sequence[float]]] = []
    for number, views in enumerate((rows, *behind)):
        prompts = [_prompt(views[place]) for place in places for _ in range(rule.draws)]
        replies = [one.ids for one in backend.draw(prompts, longest, lesson.seed + number)]
        parts = [replies[at * rule.draws : (at + 1) * rule.draws] for at in range(len(places))]
        scores.append([judge(rows[place].id, part) or () for place, part in zip(places, parts, strict=True)])
    return {
        rows[place].id: Judged(tuple(alone), tuple(told), tuple(placebo))
        for place, alone, told, placebo in zip(places, *scores, strict=True)
    }


def _prompt(sample: Sample) -> tuple[int, ...]:
    return sample.token_ids[: sample.completion_mask.index(True)]
