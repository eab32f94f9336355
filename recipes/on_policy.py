"""On-policy distillation: a clerk learns from a better one, on what it says itself.

The clerk answers; the teacher, a stronger model with the same tokens, says how likely it would have been to say each of
the clerk's words; that difference is the gradient. Nobody judges, and one reply to a request is enough. `--mix reward`
adds a term of rewards: the same rows once more under another name, each term with denominators of its own.

Run: python recipes/on_policy.py
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import clerk

from nightschool.objectives.loss import Aggregation, Loss
from nightschool.objectives.on_policy_distillation import TEACHER, OnPolicyRule, annotate, loss
from nightschool.objectives.sft import SftRule
from nightschool.objectives.sft import loss as imitation
from nightschool.training.backend import AdamConfig
from nightschool.training.local import LocalBackend
from nightschool.types import Sample

NUM_REPLIES = 64  # a step
SCHOOL_STEPS = 60
OPTIMIZER = AdamConfig(learning_rate=2e-3)
TERMS = {
    "": loss(OnPolicyRule()),
    "reward": Loss("reinforce", {"aggregation": Aggregation.SEQUENCE_SUM}, coefficient=0.1),
}


def run(folder: Path, steps: int = 30, seed: int = 0, mix: str = "none") -> clerk.Rows:
    """Shares of right replies: the teacher's beside the clerk's, and the clerk's before and after."""
    backend, teacher = clerk.hire(folder, seed), schooled(folder, seed)
    before, chance = clerk.success(backend), random.Random(seed)
    for step in range(steps):
        # What the clerk says now. A reply to each request, none judged, none compared with another.
        asked = [chance.choice(clerk.LIVE) for _ in range(NUM_REPLIES)]
        drawn = clerk.draw(backend, asked, seed=1000 * seed + step)

        # What the teacher makes of it, word by word; and what the clerk itself does, from which the step begins.
        told = zip(drawn, teacher.forward(drawn), strict=True)
        rows = annotate([replace(row, token_annotations={TEACHER: said}) for row, said in told], OnPolicyRule())
        rows = [replace(row, reference_logprobs=x) for row, x in zip(rows, backend.forward(rows), strict=True)]

        # One batch, one step; with a reward beside it the same rows stand in it twice.
        batch = [*rows, *(rewarded(rows) if mix == "reward" else [])]
        report = backend.forward_backward(batch, TERMS)
        backend.optim_step(OPTIMIZER, step)
        if step % 10 == 0:
            print(f"step {step:3}  loss {report.loss:6.3f}")
    return [
        ("right replies, teacher", before, clerk.success(teacher)),
        ("right replies, clerk", before, clerk.success(backend)),
    ]


def schooled(folder: Path, seed: int) -> LocalBackend:
    """The teacher: another copy of the clerk that was shown right replies. A larger model takes its place."""
    teacher = clerk.hire(folder, seed)
    shown = [[clerk.reply_to(teacher, r, r.desk, r.text)] for r in clerk.LIVE]
    for step, batch in enumerate(clerk.batches(shown, 16, SCHOOL_STEPS, seed)):
        teacher.forward_backward(batch, {"": imitation(SftRule())})
        teacher.optim_step(OPTIMIZER, step)
    return teacher


def rewarded(rows: Sequence[Sample]) -> list[Sample]:
    """The rows again, for the term of rewards: right replies against what the day's clerk achieves."""
    expected = sum(row.reward or 0.0 for row in rows) / len(rows)
    return [
        replace(row, term="reward", token_annotations={}, annotations={"advantage": (row.reward or 0.0) - expected})
        for row in rows
    ]


if __name__ == "__main__":
    clerk.play(run, mix=("none", "reward"))
