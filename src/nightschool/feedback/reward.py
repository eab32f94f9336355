"""All judgements on one target as one reward: the probability that it was a success."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scipy import special

from nightschool.feedback.reading.verdicts import Calibrated
from nightschool.feedback.record import current_view
from nightschool.feedback.text import TextCalibrator
from nightschool.feedback.values import IMPLICIT
from nightschool.types import Feedback, FeedbackKind
from nightschool.valuation.raters import Raters

NO_FEEDBACK = "no feedback"
NOT_CALIBRATED = "text not calibrated"
NO_SCALE = "number without a scale"
NO_MEANING = "number not calibrated"
UNCLEAR = "feedback without a verdict"
DISAGREE = "judgements disagree"
CARELESS = "a thumb that says nothing"


@dataclass(frozen=True, slots=True)
class Reward:
    """`value` in [0, 1], or `None` with the `reason` why the feedback says nothing usable.

    `confidence` is what the deciding judgement gave itself, 1 where it gave none.
    """

    value: float | None
    reason: str
    confidence: float = 1.0


@dataclass(frozen=True, slots=True)
class RewardRule:
    """How judgements become a reward.

    `noise_rate`: measured probability that a thumb points the wrong way; `None` takes thumbs at their
    word. `calibrator`: reads texts; `None` leaves them unused. `readings`: the probabilities of a reader that knows
    better, which go before its. `raters`: how often each author's thumb is right, where that could be told; then thumbs
    say yes or no, and weigh by how sure they leave one.
    """

    noise_rate: float | None = None
    calibrator: TextCalibrator | None = None
    readings: Calibrated | None = None
    raters: Raters | None = None


def combine(judgements: Sequence[Feedback], rule: RewardRule, by: str | None = None) -> Reward:
    """The strongest kind decides: an outcome, else the thumbs, else the texts. Silence is `None`, not 0. `by` is who
    judged where a judgement names nobody.

    Several thumbs are independent votes of known accuracy (8.2 of the specification): the log-odds add
    up. Without a measured noise rate disagreeing thumbs cannot be weighed, and give nothing. Where a number lies on
    its scale is no probability of success; categories, corrections and preferences are none either, and signals that
    nobody gave on purpose (source `implicit`) are weighed by `feedback.implicit` alone.
    """
    current = [found for found in current_view(judgements) if found.source != IMPLICIT]
    for found in reversed(_of(current, FeedbackKind.OUTCOME)):
        if (value := outcome(found.value)) is not None:
            return Reward(value, "outcome", _confidence([found]))
    thumbs = _of(current, FeedbackKind.THUMB)
    if thumbs:
        return _vote(thumbs, rule.noise_rate) if rule.raters is None else _weighed(thumbs, rule.raters, by)
    texts = [str(f.value) for f in _of(current, FeedbackKind.TEXT)]
    if (
        rule.readings is not None
        and (read := rule.readings.of([f.id for f in _of(current, FeedbackKind.TEXT)])) is not None
    ):
        return Reward(read, f"text ({rule.readings.version})")
    if texts and rule.calibrator is not None:
        return Reward(float(rule.calibrator.probabilities(["\n".join(texts)])[0]), f"text ({rule.calibrator.version})")
    if texts:
        return Reward(None, NOT_CALIBRATED)
    numbers = _of(current, FeedbackKind.NUMBER)
    if numbers:
        return Reward(None, NO_SCALE if any(f.scale is None for f in numbers) else NO_MEANING)
    return Reward(None, UNCLEAR if current else NO_FEEDBACK)


def judges(item: Feedback) -> bool:
    """Whether an item can decide about success: a readable outcome, a thumb or a text, said on purpose."""
    if item.source == IMPLICIT:
        return False
    if item.kind == FeedbackKind.OUTCOME:
        return outcome(item.value) is not None
    return item.kind in (FeedbackKind.THUMB, FeedbackKind.TEXT)


def outcome(value: Any) -> float | None:
    """Success within 0 and 1 from an outcome: true or false, a number, {"success": either}, or a checklist
    {"criteria": [{"met": true, "weight": 2}, ...]}, of which it is the share that was met, by weight.

    Implements: Gunjal et al., arXiv:2507.17746 (explicit rubric). Edge: a criterion without a weight weighs 1; a
    checklist with one that cannot be read says nothing.
    """
    if isinstance(value, dict):
        value = value["success"] if "success" in value else _met(value.get("criteria"))
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, int | float) and math.isfinite(value) and 0 <= value <= 1:
        return float(value)
    return None


def _met(criteria: Any) -> float | None:
    if not isinstance(criteria, list) or not criteria:
        return None
    read = [(c.get("met"), c.get("weight", 1)) if isinstance(c, dict) else (None, 1) for c in criteria]
    for met, weight in read:
        if not isinstance(met, bool) or isinstance(weight, bool) or not isinstance(weight, int | float):
            return None
        if not (math.isfinite(weight) and weight > 0):
            return None
    return sum(weight for met, weight in read if met) / sum(weight for _, weight in read)


def pair(judgements: Sequence[Feedback]) -> tuple[str, bool] | None:
    """The text and the thumb of a target that has both and whose thumbs agree, for the text calibrator."""
    current = [found for found in current_view(judgements) if found.source != IMPLICIT]
    thumbs = {bool(f.value) for f in _of(current, FeedbackKind.THUMB)}
    texts = [str(f.value) for f in _of(current, FeedbackKind.TEXT)]
    return ("\n".join(texts), thumbs.pop()) if texts and len(thumbs) == 1 else None


def _vote(thumbs: Sequence[Feedback], noise_rate: float | None) -> Reward:
    votes = [1 if thumb.value else -1 for thumb in thumbs]
    if noise_rate is None:
        if len(set(votes)) > 1:
            return Reward(None, DISAGREE)
        return Reward(float(votes[0] > 0), "thumb", _confidence(thumbs))
    balance = sum(votes) * math.log((1 - noise_rate) / noise_rate)
    return Reward(1 / (1 + math.exp(-balance)), "thumb", _confidence(thumbs))


def _weighed(thumbs: Sequence[Feedback], raters: Raters, by: str | None) -> Reward:
    """Yes or no by the sum of log-odds, with weight |2P - 1| (8.3 of the specification): a coin weighs nothing."""
    odds = [(1 if thumb.value else -1) * special.logit(raters.of(thumb.author or by)) for thumb in thumbs]
    p = float(special.expit(sum(odds)))
    if p == 0.5:
        return Reward(None, DISAGREE if len(thumbs) > 1 else CARELESS)
    return Reward(float(p > 0.5), "thumb", _confidence(thumbs) * abs(2 * p - 1))


def _confidence(judgements: Sequence[Feedback]) -> float:
    return max(1.0 if f.confidence is None else f.confidence for f in judgements)


def _of(judgements: Sequence[Feedback], kind: FeedbackKind) -> list[Feedback]:
    return [feedback for feedback in judgements if feedback.kind == kind]
