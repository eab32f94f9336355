"""SDPO: the policy's distribution in each place is drawn to that of a teacher who was told what people said.

The dense relative of `hindsight`: not only the token that was said is compared, but the likeliest ones beside it.

Implements: Huebotter et al., arXiv:2601.20802, by its published code.
Departs: the teacher is the policy that a window starts from (frozen, as Kim et al., arXiv:2603.24472, find safer where
    reasoning counts) instead of a moving average; the likeliest tokens are those of that policy, chosen once a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nightschool.errors import RefusedError
from nightschool.objectives.legality import require_no_anchor, require_tokens
from nightschool.objectives.loss import LOGPROBS, TOP, Aggregation, Loss, Material, Objective
from nightschool.types import Sample


@dataclass(frozen=True, slots=True)
class SdpoRule:
    """`alpha`: 0 the forward, 1 the reverse divergence, between them their mixture (0.5: Jensen-Shannon). `top`: how
    many tokens are compared, 0 for the sampled one alone, which knows the reverse divergence only. `max_ratio`: the
    largest weight of a token by policy over sampler. `gate`: with `top` 0, how sharply tokens that the teacher likes
    less are left out; 0 leaves out none. `clip`: with `top`, nats beyond which a token is drawn no harder; each is then
    drawn by itself, as by the reverse divergence. 0 compares whole distributions."""

    alpha: float = 0.5
    top: int = 20
    max_ratio: float = 2.0
    gate: float = 0.0
    clip: float = 0.0


def annotate(samples: Sequence[Sample], rule: SdpoRule) -> list[Sample]:
    """Check the rows: each comes with a teacher's view of itself (`Course.teachers`), scored when a window begins.

    Raises:
        RefusedError: settings that contradict each other, or a requirement of `objectives.legality` is broken.
    """
    require_tokens(samples)
    require_no_anchor(samples)
    if not 0 <= rule.alpha <= 1 or rule.top < 0 or rule.max_ratio <= 0 or min(rule.gate, rule.clip) < 0:
        raise _refused("alpha lies between 0 and 1, and counts are not negative", f"The rule is {rule}.")
    if rule.top == 0 and rule.alpha != 1:
        raise _refused("a sampled token alone knows the reverse divergence", f"alpha is {rule.alpha}; set it to 1.")
    if rule.top and rule.gate:
        raise _refused("a gate is for sampled tokens", f"top is {rule.top}.")
    if rule.clip and (rule.top == 0 or rule.alpha != 1):
        raise _refused("a clip is for the reverse divergence over top tokens", f"The rule is {rule}.")
    return list(samples)


def loss(rule: SdpoRule) -> Loss:
    shared = {"max_ratio": rule.max_ratio, "aggregation": Aggregation.TOKEN_MEAN}
    if rule.top == 0:
        return Loss("reverse_kl", {**shared, "gate": rule.gate or None})
    name, settings = ("top_pull", {"clip": rule.clip}) if rule.clip else ("top_divergence", {"alpha": rule.alpha})
    return Loss(name, {**shared, **settings}, outputs=frozenset({LOGPROBS, TOP}), num_top=rule.top)


SDPO = Objective("sdpo", SdpoRule, annotate, loss, anchored=True, material=Material.WORDS)


def _refused(rule: str, why: str) -> RefusedError:
    return RefusedError(f"The run is refused: {rule}.", why, "Correct [training.sdpo.rule].")
