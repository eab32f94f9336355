"""KTO and BCO: one reply per request, and a thumb for each. No pairs, no groups, no log-probabilities of the sampler.

Run: python recipes/thumbs.py
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import clerk

from nightschool.objectives import bco, kto
from nightschool.objectives.bco import BcoRule
from nightschool.objectives.kto import KtoRule
from nightschool.objectives.loss import Loss
from nightschool.training.backend import AdamConfig
from nightschool.training.drift import measure
from nightschool.training.local import LocalBackend
from nightschool.types import Sample
from nightschool.valuation.success import fit_success_model

NUM_THUMBS, HELD_OUT, WRONG_THUMBS = 300, 60, 0.05
BATCH_THUMBS, OPTIMIZER = 32, AdamConfig(learning_rate=5e-4)
BETA = 1.0  # a reply here is one decision, worth a nat or two; where replies are long, 0.1 is usual
BUDGET = 1.0  # nats per reply that the policy may move from where it started


def run(folder: Path, steps: int = 60, seed: int = 0) -> clerk.Rows:
    """Shares of right replies before and after at most `steps`, for two objectives on the same thumbs."""
    backend = clerk.hire(folder, seed)
    before = clerk.success(backend)
    thumbs = judged_day(backend, seed)
    held_out, train = thumbs[:HELD_OUT], thumbs[HELD_OUT:]

    # KTO compares a reply's log-ratio with that of replies to other requests, which `annotate` puts beside each row.
    # BCO compares it with the batch's mean, and lets a bad reply count more on a request that usually goes well. Both
    # balance the weight of good and bad.
    kto_rule, bco_rule = KtoRule(beta=BETA), BcoRule(beta=BETA)
    by_kto, by_bco = kto.annotate(train, kto_rule), bco.annotate(train, bco_rule)
    return [
        ("right replies, KTO", before, study(backend, by_kto, kto.loss(kto_rule), held_out, steps)),
        ("right replies, BCO", before, study(backend, by_bco, bco.loss(bco_rule), held_out, steps)),
    ]


def judged_day(backend: LocalBackend, seed: int) -> list[Sample]:
    """Customers come, each gets one reply and gives one thumb, which is wrong now and then."""
    chance = random.Random(seed)
    asked = [chance.choice(clerk.LIVE) for _ in range(NUM_THUMBS)]
    rewards, rows = [], clerk.draw(backend, asked, seed)
    for row in rows:
        right = row.reward or 0.0
        rewards.append(1.0 - right if chance.random() < WRONG_THUMBS else right)

    # Thumbs up and down fall on different requests: the clerk's habit is right more often for some things than for
    # others. BCO has to know how likely a good reply was on each of them. The success model says so from the words of
    # the request; it is cross-fitted, so no thumb informs its own estimate.
    texts, customers = [request.text for request in asked], [f"customer {number}" for number in range(NUM_THUMBS)]
    model = fit_success_model(texts, rewards, [1.0] * NUM_THUMBS, [0.0] * NUM_THUMBS, customers)
    return [
        replace(row, id=customer, reward=reward, annotations={"p_hat": float(p_hat)})
        for row, customer, reward, p_hat in zip(rows, customers, rewards, model.p_hat, strict=True)
    ]


def study(backend: LocalBackend, train: Sequence[Sample], loss: Loss, held_out: Sequence[Sample], steps: int) -> float:
    """The share of right replies after at most `steps` from a fresh adapter, which is the clerk that was judged."""
    backend.open(None)
    train, held_out = anchored(backend, train), anchored(backend, held_out)
    units: dict[str, list[Sample]] = {}
    for row in train:  # a row and its mismatched one share a group, and a batch
        units.setdefault(row.group_id or row.id, []).append(row)

    # Neither loss holds on to the probability of good replies: what is taken from bad ones may go to replies that
    # nobody ever gave. BCO asks only that good ones lose less than bad ones, and goes on until both are gone. So the
    # way the policy has moved is measured on thumbs that do not train, and there is a budget for it.
    for step, batch in enumerate(clerk.batches(list(units.values()), BATCH_THUMBS, steps, seed=0)):
        report = backend.forward_backward(batch, {"": loss})
        backend.optim_step(OPTIMIZER, step)
        drift = measure(held_out, backend.forward(held_out))
        told = f"loss {report.loss:.3f}, good replies {drift.good:+.2f} nats, bad {drift.bad:+.2f}"
        if (drift.kl or 0.0) > BUDGET:
            print(f"{loss.name} step {step:3}  {told}: the budget is spent")
            break
        if step % 10 == 0:
            print(f"{loss.name} step {step:3}  {told}")
    return clerk.success(backend)


def anchored(backend: LocalBackend, rows: Sequence[Sample]) -> list[Sample]:
    """The rows with what the policy says of them now."""
    return [replace(row, reference_logprobs=x) for row, x in zip(rows, backend.forward(rows), strict=True)]


if __name__ == "__main__":
    clerk.play(run)
