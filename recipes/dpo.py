"""DPO: of two replies to one request, the better one gains probability over the other.

Run: python recipes/dpo.py
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import clerk

from nightschool.objectives import dpo
from nightschool.objectives.dpo import DpoRule
from nightschool.training.backend import AdamConfig
from nightschool.training.local import LocalBackend
from nightschool.types import Sample

BATCH_PAIRS, OPTIMIZER = 16, AdamConfig(learning_rate=1e-3)
RULES = {"DPO": DpoRule(beta=0.1), "DPO + SFT": DpoRule(beta=0.1, sft_weight=0.2)}


def run(folder: Path, steps: int = 60, seed: int = 0) -> clerk.Rows:
    """Shares of unseen pairs ranked right, and of right replies, before and after `steps` by each rule."""
    backend = clerk.hire(folder, seed)
    chance = random.Random(seed)

    # A pair is two rows of one `group_id` with one prompt: the reply that was preferred, and the other.
    pairs = [
        pair_of(backend, request, desk)
        for request in clerk.LIVE
        for desk in clerk.DESKS
        if desk != request.desk and chance.random() < 0.5  # nobody compares everything
    ]
    exam = [pair_of(backend, request, desk) for request in clerk.EXAM for desk in clerk.DESKS if desk != request.desk]

    found: clerk.Rows = []
    for name, rule in RULES.items():
        backend.open(None)  # each rule starts from the same clerk
        rows = dpo.annotate([row for pair in pairs for row in pair], rule)
        terms = {"": dpo.loss(rule)}

        # DPO compares with a reference, the policy before the first step. What that says of the rows never changes,
        # so it is asked once, and no second model is held in memory.
        rows = [replace(row, reference_logprobs=x) for row, x in zip(rows, backend.forward(rows), strict=True)]
        units = list(zip(rows[::2], rows[1::2], strict=True))  # the loss sees both sides of a pair at once

        before = ranked_right(backend, exam), clerk.success(backend)
        for step, batch in enumerate(clerk.batches(units, BATCH_PAIRS, steps, seed)):
            report = backend.forward_backward(batch, terms)
            backend.optim_step(OPTIMIZER, step)
            if step % 20 == 0:  # log 2 = 0.693 says "no opinion"
                change = gained(batch, report.logprobs)
                print(f"{name} step {step:3}  loss {report.loss:.3f}  preferred replies {change:+.2f} nats")
        after = ranked_right(backend, exam), clerk.success(backend)

        # A pair is won as soon as the wrong reply loses more than the preferred one. What it loses may go to replies
        # that stand in no pair: then all ranks are right, and what the clerk says is neither. Counting the preferred
        # reply's likelihood as well brings it back to what people wanted.
        found.append((f"unseen pairs ranked right, {name}", before[0], after[0]))
        found.append((f"right replies, {name}", before[1], after[1]))
    return found


def pair_of(backend: LocalBackend, request: clerk.Request, wrong: str) -> tuple[Sample, Sample]:
    name = f"{request.text}, not {wrong}"
    return (
        clerk.reply_to(backend, request, request.desk, f"{name} +", group_id=name, annotations={"preferred": 1.0}),
        clerk.reply_to(backend, request, wrong, f"{name} -", group_id=name, annotations={"preferred": 0.0}),
    )


def ranked_right(backend: LocalBackend, pairs: Sequence[tuple[Sample, Sample]]) -> float:
    """The share of pairs whose preferred reply is the likelier one."""
    totals = [total(scores) for scores in backend.forward([row for pair in pairs for row in pair])]
    return fmean(better > worse for better, worse in zip(totals[::2], totals[1::2], strict=True))


def gained(batch: Sequence[Sample], logprobs: Sequence[Sequence[float | None]]) -> float:
    """How much likelier the preferred replies are than under the reference, on average, in nats."""
    return fmean(
        total(scores) - total(row.reference_logprobs or ())
        for row, scores in zip(batch, logprobs, strict=True)
        if row.annotations["preferred"]
    )


def total(scores: Sequence[float | None]) -> float:
    return sum(score for score in scores if score is not None)


if __name__ == "__main__":
    clerk.play(run)
