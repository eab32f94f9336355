"""Hindsight: what would the clerk have said, had it heard what the customer said afterwards?

The same model, frozen, scores its own reply once more behind a prompt that tells the customer's words: the teacher. The
policy, which never sees those words, is drawn there. One conversation suffices, and nobody gives a number.

Run: python recipes/hindsight.py
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import clerk
import numpy as np

from nightschool.curation.hindsight import SHOULD, hinted
from nightschool.objectives import hindsight, sdpo
from nightschool.objectives.hindsight import HindsightRule
from nightschool.objectives.loss import Loss
from nightschool.objectives.sdpo import SdpoRule
from nightschool.training.backend import AdamConfig
from nightschool.training.local import LocalBackend
from nightschool.training.loop import as_seen, spread
from nightschool.types import Sample

SESSIONS, BATCH_SIZE = 192, 32
OPTIMIZER = AdamConfig(learning_rate=2e-3)


def run(folder: Path, steps: int = 60, seed: int = 0) -> clerk.Rows:
    """Shares of right replies: the teacher's beside the clerk's, and before and after for each of two objectives."""
    backend = clerk.hire(folder, seed, reads_feedback=True)
    chance = random.Random(seed)
    before = clerk.success(backend)

    # A day of sessions. Each customer says what the reply should have been; that is told behind the request, and the
    # same reply put behind it again. A pair of rows with one id: as it was given, and as the teacher sees it.
    asked = [chance.choice(clerk.LIVE) for _ in range(SESSIONS)]
    drawn = clerk.draw(backend, asked, seed)
    replies = [replace(row, id=f"session {number}", token_annotations={}) for number, row in enumerate(drawn)]
    teachers = [
        clerk.replied(row.id, told(backend, request), said(row)) for request, row in zip(asked, replies, strict=True)
    ]

    # Can the teacher read? If words in the prompt do not make its replies better, there is nothing to be drawn to. This
    # is the one thing to find out before a night of this kind.
    exam = [
        clerk.replied(
            request.text,
            told(backend, request),
            backend.base.renderer.completion_ids(clerk.REPLY.format(request.desk)),
        )
        for request in clerk.EXAM
    ]
    teacher = fmean(np.exp(sum(x for x in row if x is not None)) for row in backend.forward(exam))

    # The regression compares what both say of the tokens that were given: it knows that a reply was wrong, and learns
    # what is right from replies that were. SDPO compares the likeliest tokens in each place: a teacher that read the
    # right answer shows it beside every wrong one.
    regression, dense = HindsightRule(), SdpoRule()
    scored = with_scores(backend, hindsight.annotate(replies, regression), teachers)
    compared = with_scores(backend, sdpo.annotate(replies, dense), teachers)
    compared = with_top(backend, compared, teachers, dense.top)
    return [
        ("right replies, teacher", before, float(teacher)),
        ("right replies, regression", before, study(backend, scored, hindsight.loss(regression), steps, seed)),
        ("right replies, SDPO", before, study(backend, compared, sdpo.loss(dense), steps, seed)),
    ]


def told(backend: LocalBackend, request: clerk.Request) -> list[int]:
    """The prompt of a request that tells what its customer says afterwards."""
    words = hinted(request.messages, SHOULD.format(words=clerk.REPLY.format(request.desk)))
    assert words is not None
    return backend.base.renderer.prompt_ids(words)


def said(row: Sample) -> list[int]:
    return [token for token, sampled in zip(row.token_ids, row.completion_mask, strict=True) if sampled]


def with_scores(backend: LocalBackend, rows: Sequence[Sample], teachers: Sequence[Sample]) -> list[Sample]:
    """What policy and teacher say of the tokens that were given."""
    anchor, taught = backend.forward(rows), as_seen(rows, teachers, backend.forward(teachers))
    return [
        replace(row, reference_logprobs=own, token_annotations={"teacher_logprobs": theirs})
        for row, own, theirs in zip(rows, anchor, taught, strict=True)
    ]


def with_top(backend: LocalBackend, rows: Sequence[Sample], teachers: Sequence[Sample], k: int) -> list[Sample]:
    """What the teacher says of the `k` tokens that the policy finds likeliest in each place."""
    likeliest = backend.top(rows, k)  # (T, k) per row
    chosen = [ids[list(row.completion_mask)] for row, ids in zip(rows, likeliest, strict=True)]
    asking = [
        replace(view, token_annotations={"top_ids": spread(ids, view.completion_mask, 0)})
        for view, ids in zip(teachers, chosen, strict=True)
    ]
    answers = [
        answer[list(view.completion_mask)] for view, answer in zip(teachers, backend.forward_top(asking), strict=True)
    ]
    return [
        replace(
            row,
            token_annotations={
                **row.token_annotations,
                "top_ids": ids,
                "teacher_top": spread(answer, row.completion_mask, np.nan),
            },
        )
        for row, ids, answer in zip(rows, likeliest, answers, strict=True)
    ]


def study(backend: LocalBackend, rows: Sequence[Sample], loss: Loss, steps: int, seed: int) -> float:
    """The share of right replies after `steps` from a fresh adapter, which is the clerk that drew the rows."""
    backend.open(None)
    for step, batch in enumerate(clerk.batches([[row] for row in rows], BATCH_SIZE, steps, seed)):
        report = backend.forward_backward(batch, {"": loss})
        backend.optim_step(OPTIMIZER, step)
        if step % 20 == 0:
            print(f"{loss.name} step {step:3}  loss {report.loss:.3f}")
    return clerk.success(backend)


if __name__ == "__main__":
    clerk.play(run)
