"""On-policy distillation: on what the policy itself said, each token is drawn to what a stronger model makes of it.

No reward is needed, and one reply to a request is enough. The teacher scores the rows once, before the run; the policy
is scored at every step, so that a row that has grown stale is held against what the policy says now.

Implements: Lu et al., on-policy distillation, and Agarwal et al., arXiv:2306.13649, at their reverse divergence.
Departs: logged replies instead of fresh ones, weighed by policy over the window's start up to `max_ratio`; a clip on
    the gap (that it keeps replies from running on is unverified). A reward's term has rows of its own (`Sample.term`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from nightschool.objectives.legality import refused, require_no_anchor, require_scored, require_tokens
from nightschool.objectives.loss import Aggregation, Anchored, Loss, Material, Objective
from nightschool.types import Sample

TEACHER = "teacher_logprobs"
CORRECT = "Correct [training.on_policy_distillation.rule]."


@dataclass(frozen=True, slots=True)
class OnPolicyRule:
    """`clip`: nats; a token is drawn no harder than by a teacher so far away. `gate`: how sharply tokens that the
    teacher likes less are left out; 0 leaves out none. `max_ratio`: the largest weight of a token by policy over the
    window's start."""

    clip: float = 5.0
    gate: float = 0.0
    max_ratio: float = 2.0
    aggregation: str = Aggregation.TOKEN_MEAN.value


def annotate(samples: Sequence[Sample], rule: OnPolicyRule) -> list[Sample]:
    """Check the rows: each of their loss tokens was scored by the teacher.

    Raises:
        RefusedError: settings out of range, no score, or a requirement of `objectives.legality` is broken.
    """
    require_tokens(samples)
    require_no_anchor(samples)
    require_scored(samples, TEACHER, "distillation needs the teacher's log-probabilities")
    if rule.clip <= 0 or rule.max_ratio <= 0 or rule.gate < 0:
        raise refused("clip and max_ratio are above zero, a gate is not below", f"the rule is {rule}", CORRECT)
    return list(samples)


def after_anchor(samples: Sequence[Sample], rule: OnPolicyRule) -> Anchored:
    """The samples as they are. Figure: `teacher_kl`, the mean of log(policy / teacher) over the tokens drawn, which
    is the reverse divergence at the window's start where that policy drew them."""
    rows = ((s.reference_logprobs or (), s.token_annotations[TEACHER], s.loss_mask) for s in samples)
    gaps = [own - told for row in rows for own, told, used in zip(*row, strict=True) if used]
    return Anchored(list(samples), {"teacher_kl": fmean(gaps)})


def loss(rule: OnPolicyRule) -> Loss:
    settings = {"clip": rule.clip, "gate": rule.gate or None, "max_ratio": rule.max_ratio}
    aggregation = Aggregation(rule.aggregation)
    return Loss("reverse_kl", {**settings, "aggregation": aggregation}, scored=frozenset({TEACHER}))


ON_POLICY_DISTILLATION = Objective(
    "on_policy_distillation",
    OnPolicyRule,
    annotate,
    loss,
    anchored=True,
    material=Material.REPLIES,
    one_version=True,
    after_anchor=after_anchor,
)
