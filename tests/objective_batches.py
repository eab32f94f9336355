"""A batch for each objective of single replies and pairs, with an anchor a little off the policy."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from nightschool.objectives.bco import BCO, BcoRule
from nightschool.objectives.dpo import DPO, DpoRule
from nightschool.objectives.dro import DRO, DroRule
from nightschool.objectives.kto import KTO, KtoRule
from nightschool.objectives.loss import Loss, Terms
from nightschool.objectives.qrpo import QRPO, QrpoRule
from nightschool.objectives.rebel import REBEL, RebelRule
from nightschool.objectives.sft import RFT, SFT, SftRule
from nightschool.types import Sample

NUM_ROWS = 12

# Each objective of this family, with what `judged` rows need beside their reward.
MADE: dict[str, Callable[[], tuple[list[Sample], Loss]]] = {
    "sft": lambda: (SFT.annotate(judged(), SftRule()), SFT.loss(SftRule())),
    "dft": lambda: (RFT.annotate(judged(), sharp := SftRule(certainty_weighted=True)), RFT.loss(sharp)),
    "dpo": lambda: (DPO.annotate(paired(), DpoRule()), DPO.loss(DpoRule(noise=0.1, sft_weight=0.1))),
    "ipo": lambda: (DPO.annotate(paired(), DpoRule()), DPO.loss(DpoRule(squared=True))),
    "kto": lambda: (KTO.annotate(judged(), KtoRule()), KTO.loss(KtoRule())),
    "apo_zero": lambda: (KTO.annotate(judged(), plain := KtoRule(measured=False)), KTO.loss(plain)),
    "bco": lambda: (BCO.annotate(judged(), BcoRule()), BCO.loss(BcoRule())),
    "dro": lambda: (DRO.annotate(judged(), DroRule()), DRO.loss(DroRule())),
    "qrpo": lambda: (QRPO.annotate(scored(), QrpoRule()), QRPO.loss(QrpoRule())),
    "rebel": lambda: (REBEL.annotate(paired(), RebelRule()), REBEL.loss(RebelRule())),
}


def judged() -> list[Sample]:
    """Replies of different lengths to different requests, a tool's token in the middle of each."""
    rng = random.Random(5)
    samples = []
    for number in range(NUM_ROWS):
        ids = tuple(rng.randrange(3, 250) for _ in range(9 + rng.randrange(8)))
        used = tuple(place >= 4 and place != 6 for place in range(len(ids)))
        notes = {"p_hat": rng.uniform(0.2, 0.8)}
        reward = float(number % 3 > 0)
        samples.append(
            Sample(str(number), ids, used, used, weight=rng.uniform(0.5, 1), reward=reward, annotations=notes)
        )
    return samples


def paired() -> list[Sample]:
    """The same two by two on one request; the first of a pair is preferred."""
    rows = judged()
    return [
        replace(
            row,
            token_ids=(*rows[number - number % 2].token_ids[:4], *row.token_ids[4:]),
            group_id=str(number // 2),
            annotations={"preferred": float(number % 2 == 0)},
        )
        for number, row in enumerate(rows)
    ]


def scored() -> list[Sample]:
    """The same in two groups of one version, with rewards on a scale."""
    return [
        replace(row, group_id=str(number % 2), policy_version="v1", reward=number * 1.3 - 4)
        for number, row in enumerate(judged())
    ]


def made(name: str) -> tuple[list[Sample], Terms]:
    """A batch with an anchor a little off the policy, so that no log-ratio is zero."""
    rng = random.Random(6)
    rows, loss = MADE[name]()
    anchored = [
        replace(row, reference_logprobs=tuple(rng.uniform(-7, -5) if used else None for used in row.completion_mask))
        for row in rows
    ]
    return anchored, {"": loss}
