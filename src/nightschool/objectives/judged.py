"""Replies judged one by one, good or bad: what KTO and BCO share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nightschool.objectives.legality import refused
from nightschool.objectives.loss import Anchored
from nightschool.objectives.regression import require_judged, reward_of
from nightschool.types import Sample

BALANCE = (1.0, 4 / 3)  # weight of the desirable replies over that of the undesirable ones


def judge(samples: Sequence[Sample], calibrated: bool) -> list[Sample]:
    """Annotate each sample `desirable` 1 or 0.

    A calibrated probability P counts |2 P - 1|: an even one says nothing. Rows that share a judgement share its weight.

    Raises:
        RefusedError: a requirement of `objectives.legality` is broken, or all judgements are alike.
    """
    require_judged(samples, calibrated)
    judged = [_judged(sample, reward_of(sample)) for sample in samples]
    if len({sample.annotations["desirable"] for sample in judged if sample.weight > 0}) < 2:
        raise refused("some replies are good and some are bad", "All judgements are alike.")
    return judged


def weight_range(desirable: float, undesirable: float) -> tuple[float, float]:
    """The factors of undesirable replies, beside 1 for desirable ones, that balance the two classes.

    `desirable`, `undesirable`: how many there are of each, or how much they weigh together.

    Implements: Ethayarajh et al., arXiv:2402.01306, Eq. 8, with the bounds that TRL checks.
    """
    low, high = BALANCE
    return desirable / (high * undesirable), desirable / (low * undesirable)


def balance(samples: Sequence[Sample], factor: float | None) -> list[Sample]:
    """Multiply the weights of undesirable replies by `factor`, or by the legal factor nearest to 1.

    Raises:
        RefusedError: a given factor leaves the classes out of balance; the message says which would do.
    """
    desirable, undesirable = _class_weights(samples)
    low, high = weight_range(desirable, undesirable)
    chosen = min(max(1.0, low), high) if factor is None else factor
    if not 0.99 * low <= chosen <= 1.01 * high:  # whoever types the printed bound is within it
        raise refused(
            "good and bad replies weigh about the same",
            f"Bad ones count {chosen:g} times; between {low:.4g} and {high:.4g} would do.",
            "Set undesirable_factor.",
        )
    return [
        sample if sample.annotations["desirable"] else replace(sample, weight=sample.weight * chosen)
        for sample in samples
    ]


def told_balance(samples: Sequence[Sample], rule: object) -> Anchored:
    """The samples as they are, and for the log what desirable replies weigh over undesirable ones."""
    desirable, undesirable = _class_weights([s for s in samples if not s.annotations.get("mismatched")])
    return Anchored(list(samples), {"class_balance": desirable / undesirable})


def _class_weights(samples: Sequence[Sample]) -> tuple[float, float]:
    totals = [0.0, 0.0]
    for sample in samples:
        totals[int(sample.annotations["desirable"])] += sample.weight
    return totals[1], totals[0]


def _judged(sample: Sample, reward: float) -> Sample:
    weight = sample.weight * abs(2 * reward - 1) / sample.annotations.get("num_rows", 1.0)
    return replace(sample, weight=weight, annotations={**sample.annotations, "desirable": float(reward > 0.5)})
