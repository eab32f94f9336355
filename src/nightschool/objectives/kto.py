"""KTO: a reply judged good gains log-ratio over what the policy gained on any reply, a bad one falls below that.

Implements: Ethayarajh et al., arXiv:2402.01306, Eq. 7; D'Oosterlinck et al., arXiv:2408.06266 (APO-zero, unpaired).
Departs: mismatched pairs come of one cyclic shift over the whole dataset instead of one per batch, and each travels
    beside the row whose request it has; replies to the very same request are no mismatch. The classes are balanced
    by a factor that is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nightschool.errors import RefusedError
from nightschool.objectives.judged import balance, judge, told_balance
from nightschool.objectives.loss import Loss, Material, Objective
from nightschool.types import Sample


@dataclass(frozen=True, slots=True)
class KtoRule:
    """`beta`: how far a judgement may pull. `undesirable_factor`: how much a bad reply counts beside a good one;
    `None` balances the classes. `measured`: compare with the policy's gain on mismatched replies; without, with zero
    (APO-zero), for replies that are better than the policy's own. `calibrated`: rewards between 0 and 1 are
    calibrated probabilities. A step's rows are half mismatched ones.
    """

    beta: float = 0.1
    undesirable_factor: float | None = None
    measured: bool = True
    calibrated: bool = False


def annotate(samples: Sequence[Sample], rule: KtoRule) -> list[Sample]:
    """Judge the rows, and put beside each a row of its request with a reply to another one.

    Both are annotated `mismatched` (0 and 1) and share a `group_id`, so they share a batch.

    Raises:
        RefusedError: see `objectives.judged`; or all rows answer one request.
    """
    judged = balance(judge(samples, rule.calibrated), rule.undesirable_factor)
    if not rule.measured:
        return judged
    requests = [sample.token_ids[: sample.completion_mask.index(True)] for sample in judged]
    rows: list[Sample] = []
    for place, (sample, request) in enumerate(zip(judged, requests, strict=True)):
        following = ((place + step) % len(judged) for step in range(1, len(judged)))
        other = next((index for index in following if requests[index] != request), None)
        if other is None:
            raise RefusedError(
                "The run is refused: a reply is compared with replies to other requests.",
                "All rows answer the same request.",
                "Use DPO or a group objective.",
            )
        rows.append(replace(sample, group_id=sample.id, annotations={**sample.annotations, "mismatched": 0.0}))
        rows.append(_mismatched(sample, request, judged[other]))
    return rows


def loss(rule: KtoRule) -> Loss:
    return Loss("kto" if rule.measured else "apo_zero", {"beta": rule.beta})


KTO = Objective(
    "kto", KtoRule, annotate, loss, anchored=True, material=Material.TEXTS, after_anchor=told_balance, batch_size=64
)


def _mismatched(sample: Sample, request: tuple[int, ...], other: Sample) -> Sample:
    """`request` with the reply of `other`: everything from its first sampled token on."""
    start = other.completion_mask.index(True)
    reply = (False,) * len(request) + other.completion_mask[start:]
    return replace(
        other,
        id=f"{sample.id} mismatched",
        token_ids=request + other.token_ids[start:],
        completion_mask=reply,
        loss_mask=reply,
        weight=1.0,
        reward=None,
        group_id=sample.id,
        annotations={**other.annotations, "mismatched": 1.0},
        token_annotations={},
        term=sample.term,
    )
