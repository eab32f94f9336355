"""What a policy that is drawn to a teacher may lose unseen: doubt where it is due, variety, other skills.

A teacher who knows more than the student hedges less, and the student takes over its certainty without what it knows.
So a distillation is looked at, at fixed steps: replies to prompts of its own, and to questions of another kind whose
answers are known.

Implements: the measures of Kim et al., arXiv:2603.24472 (their ten words, counted anywhere and as whole words), and the
    three alarms of Fallah et al., arXiv:2606.05559 (thresholds from their code's documentation).
Departs: their words are counted per 1,000 tokens, as the length changes too.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from nightschool.types import Json
from nightschool.valuation.likeness import rouge_l

MARKERS = ("wait", "hmm", "perhaps", "maybe", "actually", "alternatively", "seems", "might", "likely", "check")


@dataclass(frozen=True, slots=True)
class WatchRule:
    """When a distillation is looked at, and what ends it.

    `every`: steps between two looks, 0 for none; `replies` of the agent's own prompts, `draws` to each prompt and
    question, `longest` tokens each. `questions`: a file of {"id", "prompt", "accept"} instead of the shipped ones.
    `marker_loss`: the share of the markers' density, and `errors` the standard errors of success elsewhere, that must
    both be lost for a stop; `least_markers`: that must have been counted before. `entropy_ratio`, `similarity` and
    `drift` (nats a sequence) raise an alarm.
    """

    every: int = 10
    replies: int = 16
    draws: int = 2
    longest: int = 48
    questions: str = ""
    marker_loss: float = 0.5
    errors: float = 2.0
    least_markers: int = 20
    entropy_ratio: float = 0.6
    similarity: float = 0.85
    drift: float = 2.0


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply that was drawn to the prompt `asked`. `entropy`: mean nats of a token's distribution; `confidence`: the
    geometric mean of its tokens' probabilities; `right` where the answer is known."""

    asked: str
    text: str
    num_tokens: int
    entropy: float
    confidence: float
    right: bool | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """A policy at one step. `anywhere` and `whole` count markers; `similarity` is the mean ROUGE-L of pairs of replies
    to different prompts of its own; `success` and `confidence` are by question. `None`: nothing was drawn there."""

    step: int
    num_replies: int
    num_tokens: int
    anywhere: int
    whole: int
    entropy: float
    similarity: float | None
    success: Mapping[str, float]
    confidence: Mapping[str, float]

    @property
    def density(self) -> float:
        """Markers, as whole words, per 1,000 tokens."""
        return 1000 * self.whole / self.num_tokens

    def metrics(self) -> dict[str, float]:
        """What a run logs."""
        found = {
            "markers": self.density,
            "markers_anywhere": 1000 * self.anywhere / self.num_tokens,
            "reply_tokens": self.num_tokens / self.num_replies,
            "reply_entropy": self.entropy,
        }
        if self.similarity is not None:
            found["similarity"] = self.similarity
        if self.success:
            found["other_success"] = fmean(self.success.values())
            found["other_confidence"] = fmean(self.confidence.values())
            found["overconfidence"] = found["other_confidence"] - found["other_success"]
        return found


def count_markers(text: str, words: Sequence[str] = MARKERS) -> tuple[int, int]:
    """How often words occur anywhere in a text, and as whole words, whatever the case."""
    lower = text.lower()
    whole = re.findall(r"[^\W_]+", lower)
    return sum(lower.count(word) for word in words), sum(word in words for word in whole)


def look_at(step: int, home: Sequence[Reply], elsewhere: Sequence[Reply], words: Sequence[str] = MARKERS) -> Look:
    """What replies to own prompts and to questions of another kind say of the policy that drew them."""
    replies = [*home, *elsewhere]
    counts = [count_markers(reply.text, words) for reply in replies]
    right: dict[str, list[float]] = defaultdict(list)
    sure: dict[str, list[float]] = defaultdict(list)
    for reply in elsewhere:
        right[reply.asked].append(float(bool(reply.right)))
        sure[reply.asked].append(reply.confidence)
    return Look(
        step,
        len(replies),
        sum(reply.num_tokens for reply in replies),
        sum(anywhere for anywhere, _ in counts),
        sum(whole for _, whole in counts),
        fmean(reply.entropy for reply in replies),
        self_similarity(home),
        {name: fmean(values) for name, values in right.items()},
        {name: fmean(values) for name, values in sure.items()},
    )


def self_similarity(replies: Sequence[Reply]) -> float | None:
    """The mean ROUGE-L, by words, of replies to different prompts, each beside the next one of those."""
    pairs = []
    for place, one in enumerate(replies):
        other = next((reply for reply in replies[place + 1 :] if reply.asked != one.asked), None)
        if other is not None:
            pairs.append(rouge_l(one.text.split(), other.text.split()))
    return fmean(pairs) if pairs else None


def change(base: Look, now: Look) -> tuple[float, float] | None:
    """How much success on the questions changed, paired, and its standard error; `None` of fewer than two."""
    shared = [name for name in base.success if name in now.success]
    if len(shared) < 2:
        return None
    gains = [now.success[name] - base.success[name] for name in shared]
    mean = fmean(gains)
    return mean, math.sqrt(sum((gain - mean) ** 2 for gain in gains) / (len(gains) - 1) / len(gains))


def reason_to_stop(base: Look, now: Look, rule: WatchRule) -> str | None:
    """Why a policy should go no further: more than `marker_loss` of its doubt is gone, and success elsewhere lies more
    than `errors` standard errors below where it began. Edge: with too few markers at the start nobody can say."""
    moved = change(base, now)
    if base.whole < rule.least_markers or moved is None:
        return None
    if now.density >= (1 - rule.marker_loss) * base.density or moved[0] >= -rule.errors * moved[1]:
        return None
    return (
        f"doubt and other skills are lost: markers {base.density:.1f} to {now.density:.1f} per 1,000 tokens, success "
        f"on other questions {moved[0]:+.2f} with a standard error of {moved[1]:.2f}"
    )


def alarms(base: Look, now: Look, drift: float | None, rule: WatchRule) -> list[str]:
    """Signs that replies collapse. None of them ends a run. Edge: replies that were alike before are no sign."""
    found = []
    if base.entropy > 0 and now.entropy / base.entropy < rule.entropy_ratio:
        found.append(f"entropy {now.entropy / base.entropy:.2f} of what it was, below {rule.entropy_ratio:g}")
    before, alike = base.similarity, now.similarity
    if before is not None and alike is not None and before <= rule.similarity < alike:
        found.append(f"replies resemble each other by {alike:.2f}, above {rule.similarity:g}")
    if drift is not None and drift > rule.drift:
        found.append(f"drift of {drift:.2f} nats, above {rule.drift:g}")
    return found


def told(looks: Sequence[Look], stopped: str | None, raised: Mapping[int, Sequence[str]], rule: WatchRule) -> Json:
    """What a run keeps of its looks: the figures of each, what stopped it, the alarms by step, and a sentence."""
    base, last = looks[0], looks[-1]
    moved = change(base, last)
    parts = [f"markers {base.density:.1f} to {last.density:.1f} per 1,000 tokens"]
    if base.whole < rule.least_markers:
        parts = [f"{base.whole} markers of doubt at the start are too few to watch"]
    if moved is not None:
        parts.append(
            f"success on other questions {fmean(base.success.values()):.2f} {moved[0]:+.2f} ± {2 * moved[1]:.2f}"
        )
    parts.append(f"entropy {base.entropy:.2f} to {last.entropy:.2f}")
    parts += [f"ALARM at step {step}: {'; '.join(signs)}" for step, signs in raised.items() if signs]
    verb = f"The watch stopped the run ({stopped})" if stopped else "The watch let the run pass"
    return {
        "sentence": f"{verb}: {', '.join(parts)}.",
        "stopped": stopped,
        "alarms": {str(step): list(signs) for step, signs in raised.items() if signs},
        "looks": [{"step": look.step, **look.metrics()} for look in looks],
    }
