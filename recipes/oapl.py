"""OAPL: by day each request gets one reply and one judgement, by night the policy learns from it. Nothing is replayed.

Run: python recipes/oapl.py
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import clerk

from nightschool.objectives import oapl
from nightschool.objectives.oapl import OaplRule
from nightschool.training.backend import AdamConfig
from nightschool.training.drift import DriftRule, measure
from nightschool.training.local import LocalBackend
from nightschool.types import Sample
from nightschool.valuation.success import fit_success_model

NIGHTS, SESSIONS, HELD_OUT = 4, 240, 60
BATCH_SIZE, OPTIMIZER = 32, AdamConfig(learning_rate=1e-3)


def run(folder: Path, steps: int = 40, seed: int = 0) -> clerk.Rows:
    """The share of right replies before the first night, and after each; `steps` is the most a night takes."""
    backend = clerk.hire(folder, seed)
    parent: Path | None = None  # the adapter of the night before
    found = [clerk.success(backend)]
    for night in range(NIGHTS):
        sessions = judged_day(backend, seed * 100 + night)
        rule = OaplRule(beta=0.5 if night == 0 else 0.25)
        parent = study(backend, sessions, rule, parent, folder / f"night-{night}", steps)
        found.append(clerk.success(backend))
    return [
        *((f"right replies, night {number} alone", *pair) for number, pair in enumerate(pairwise(found), start=1)),
        ("right replies", found[0], found[-1]),
    ]


def judged_day(backend: LocalBackend, seed: int) -> list[Sample]:
    """One judged reply per session, with what was to be expected on its request: `p_hat`, and `p_lo` below it.

    A group objective would replay a request to learn what it is worth. Here the success model says so, from the words
    of the request and what became of others like it. It is cross-fitted: no session informs its own estimate.
    """
    chance = random.Random(seed)
    asked = [chance.choice(clerk.LIVE) for _ in range(SESSIONS)]
    drawn = [replace(sample, id=f"session {n}") for n, sample in enumerate(clerk.draw(backend, asked, seed))]
    model = fit_success_model(
        requests=[request.text for request in asked],
        rewards=[sample.reward or 0.0 for sample in drawn],
        weights=[1.0] * SESSIONS,
        ages=[0.0] * SESSIONS,
        principals=[f"customer {number}" for number in range(SESSIONS)],
    )
    return [
        replace(sample, annotations={"p_hat": float(p_hat), "p_lo": float(p_lo)})
        for sample, p_hat, p_lo in zip(drawn, model.p_hat, model.p_lo, strict=True)
    ]


def study(
    backend: LocalBackend, sessions: Sequence[Sample], rule: OaplRule, parent: Path | None, folder: Path, steps: int
) -> Path:
    """One night from `parent` on; its result, which the backend holds as well, lies in the folder that is returned."""
    # The anchor is the policy that the night starts from. It scores everything once; that is all that is needed of it.
    backend.open(parent)
    rows = oapl.annotate(sessions, rule)
    rows = [replace(row, reference_logprobs=x) for row, x in zip(rows, backend.forward(rows), strict=True)]
    held_out, train = rows[:HELD_OUT], rows[HELD_OUT:]
    terms = {"": oapl.loss(rule)}

    # The loss regresses log(policy / anchor) of a whole reply on advantage / beta. Replies that nobody gave have no
    # row, so nothing holds them: mass that leaves the log may go anywhere. Hence a budget, measured on sessions that
    # are not trained on, and a way back.
    budget = DriftRule(kl_stop=0.5, kl_restore=0.25)
    safe, reason = folder / "step-0", "all steps taken"
    backend.save_weights(safe)
    for step, batch in enumerate(clerk.batches([[row] for row in train], BATCH_SIZE, steps, seed=0)):
        backend.forward_backward(batch, terms)
        backend.optim_step(OPTIMIZER, step)
        drift = measure(held_out, backend.forward(held_out))
        stop = budget.reason_to_stop(drift, step + 1, steps)
        if stop:
            reason = f"{stop}; back to {safe.name}"
            backend.open(safe)
            break
        if budget.is_safe(drift):
            safe = folder / f"step-{step + 1}"
            backend.save_weights(safe)
    drift = measure(held_out, backend.forward(held_out))
    print(f"{folder.name}: {reason}; moved {drift.kl:.2f} nats, good replies {drift.good:+.2f}, bad {drift.bad:+.2f}")
    result = folder / "result"
    backend.save_weights(result)
    return result


if __name__ == "__main__":
    clerk.play(run)
