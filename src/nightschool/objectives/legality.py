"""What may train with what, said with the name of the rule (design laws 2, 3, 8). Pure.

First of what is recorded: which objectives an exchange, or a judged branch of a session, would be material
for, and why not for the others. Then of samples: checked before a run, refused when a rule is broken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from nightschool.errors import RefusedError, TooLittleDataError
from nightschool.types import (
    Branch,
    FeedbackKind,
    Fidelity,
    LedgerState,
    LogprobProvenance,
    Purpose,
    Sample,
    Sampler,
    Split,
    Support,
)

TEXT_ONLY = "text only"
NO_LOGPROBS = "no log-probabilities of the engine"
NO_FEEDBACK = "no feedback"
NO_GROUP = "one reply to its request"
GATE_SPLIT = "gate split"
SELECT_SPLIT = "select split: measures drift"
SIDE_BRANCH = "side branch"
RETRIED = "retried"
INCOMPLETE = "context incomplete"
DENIED = "training denied"
EXAM = "exam"
NEXT_RUN = "the next run considers it"

# Marks on an exchange that bar it from training, and what the ledger says of them.
MARKS_AGAINST = {
    "suspect_empty_args": "suspect empty arguments",
    "redacted": "redacted",
    "redacted_reply": "redacted",
}
TEXT_STAYS = ("redacted", "redacted_reply")  # what was cut out left whole texts, but no tokens


class Heard(StrEnum):
    """What a judgement gives an objective to learn from. The values say what is missing without it."""

    VERDICT = "no verdict"  # whether it went well
    PAIR = "no better reply"  # what should have been said instead, or which of two is better
    WORDS = "no words"  # why


SAYS: dict[FeedbackKind, frozenset[Heard]] = {
    FeedbackKind.THUMB: frozenset({Heard.VERDICT}),
    FeedbackKind.OUTCOME: frozenset({Heard.VERDICT}),
    FeedbackKind.TEXT: frozenset({Heard.WORDS}),
    FeedbackKind.CORRECTION: frozenset({Heard.PAIR, Heard.WORDS}),
    FeedbackKind.PREFERENCE: frozenset({Heard.PAIR}),
}


def heard_in(kinds: Iterable[str]) -> frozenset[Heard]:
    """What kinds of feedback say together; kinds that are not known say nothing."""
    given = set(kinds)
    return frozenset(heard for kind, said in SAYS.items() if kind.value in given for heard in said)


@dataclass(frozen=True, slots=True)
class Facts:
    """What decides about one exchange; or about a judged branch, then of its least fit exchange.

    `mark` is the flag of `MARKS_AGAINST` that it carries, `heard` what was said about it. `group_size` counts the
    judged replies to the same request by the same policy, this one included.
    """

    status: str = "ok"
    purpose: Purpose = Purpose.SERVE
    split: Split = Split.TRAIN
    branch: Branch = Branch.MAIN
    training_allowed: bool = True
    context_complete: bool = True
    fidelity: Fidelity = Fidelity.EXACT
    support: Support = Support.FULL
    logprob_provenance: LogprobProvenance = LogprobProvenance.ENGINE
    mark: str | None = None
    heard: frozenset[Heard] = frozenset()
    group_size: int = 1


@dataclass(frozen=True, slots=True)
class Objective:
    """What one objective needs of its material. `lacks` is told where there is none at all.

    `tokens`: the exact tokens, from a sampler whose distribution the trainer can recompute. `logprobs`: the
    engine's own of the policy that sampled. `group`: at least two judged replies to one request.
    """

    name: str
    title: str
    learns_from: str
    lacks: str
    needs: Heard | None = None
    tokens: bool = False
    logprobs: bool = False
    group: bool = False


OBJECTIVES = (
    Objective("sft", "SFT", "whole replies", "It needs one whole reply that may train."),
    Objective(
        "dpo",
        "DPO",
        "replies with a better one",
        "It needs corrections, or preferences between two replies.",
        Heard.PAIR,
    ),
    Objective("kto", "KTO/BCO", "judged replies and sessions", "It needs thumbs or outcomes.", Heard.VERDICT),
    Objective(
        "hindsight",
        "Hindsight self-distillation",
        "replies and sessions with words about them",
        "It needs exact tokens, and texts or corrections.",
        Heard.WORDS,
        tokens=True,
    ),
    Objective(
        "oapl",
        "OAPL (single rollout)",
        "judged replies and sessions",
        "It needs exact tokens, and thumbs or outcomes.",
        Heard.VERDICT,
        tokens=True,
    ),
    Objective(
        "grpo",
        "GRPO/group OAPL",
        "groups of judged replies to one request",
        "It needs several judged replies to one request; an environment that can be replayed makes them.",
        Heard.VERDICT,
        tokens=True,
        logprobs=True,
        group=True,
    ),
)


def reason_against_any(facts: Facts) -> str | None:
    """Why this trains with no objective, whatever was said about it; `None` when it may."""
    if facts.purpose == Purpose.EXAM:
        return EXAM
    if facts.status != "ok":
        return facts.status
    if not facts.training_allowed:
        return DENIED
    if not facts.context_complete:
        return INCOMPLETE
    if facts.mark is not None and facts.mark not in TEXT_STAYS:
        return MARKS_AGAINST[facts.mark]
    if facts.split == Split.GATE:
        return GATE_SPLIT
    return SELECT_SPLIT if facts.split == Split.SELECT else None


def reason_against_tokens(facts: Facts) -> str | None:
    """Why a ratio may not be taken on its tokens; `None` when it may."""
    if facts.mark in TEXT_STAYS:
        return MARKS_AGAINST[facts.mark]
    if facts.fidelity == Fidelity.TEXT:
        return TEXT_ONLY
    return None if facts.support == Support.FULL else facts.support.value


def reason_against_use(objective: Objective, facts: Facts) -> str | None:
    """Why `objective` may not learn from it; `None` when it may. What can never be mended is told first."""
    against = reason_against_any(facts)
    if against is None and objective.needs is None and facts.branch == Branch.RETRY:
        against = RETRIED
    if against is None and objective.tokens:
        against = reason_against_tokens(facts)
    if against is None and objective.logprobs and facts.logprob_provenance != LogprobProvenance.ENGINE:
        against = NO_LOGPROBS
    if against is None and objective.needs is not None and objective.needs not in facts.heard:
        against = objective.needs.value
    if against is None and objective.group and facts.group_size < 2:
        against = NO_GROUP
    return against


def legal(facts: Facts) -> dict[str, str | None]:
    """Every objective by name, with the reason against it, `None` where it may learn from this."""
    return {objective.name: reason_against_use(objective, facts) for objective in OBJECTIVES}


def standing(facts: Facts) -> tuple[LedgerState | None, str]:
    """What a night would do today with an exchange that no run has looked at: its state and why.

    `None` stands for: it may train, and the next run considers it.
    """
    against = reason_against_any(facts)
    if against in (GATE_SPLIT, SELECT_SPLIT):
        return LedgerState.HELD, against
    against = against or reason_against_tokens(facts)
    if against is not None:
        return LedgerState.EXCLUDED, against
    if Heard.VERDICT not in facts.heard:
        if facts.branch == Branch.MAIN:
            return LedgerState.HELD, NO_FEEDBACK
        return LedgerState.EXCLUDED, RETRIED if facts.branch == Branch.RETRY else SIDE_BRANCH
    return None, NEXT_RUN


def reason_against(fidelity: Fidelity, sampler: Sampler) -> str | None:
    """Why a ratio objective may not use tokens drawn like this; `None` when it may.

    Ratios need the exact tokens, and a sampler whose whole distribution the trainer can recompute.
    """
    return reason_against_tokens(Facts(fidelity=fidelity, support=sampler.support))


def require_tokens(samples: Sequence[Sample]) -> None:
    """Every sample has tokens to learn, all of them sampled by a policy, none of them the very first.

    Raises:
        TooLittleDataError: there are no samples.
        RefusedError: a sample breaks the rule.
    """
    if not samples:
        raise TooLittleDataError(
            "There is nothing to study.",
            "The dataset is empty.",
            "nightschool explain <exchange> says why a row is out",
        )
    for sample in samples:
        length = len(sample.token_ids)
        if len(sample.loss_mask) != length or len(sample.completion_mask) != length:
            raise refused("masks cover every token", f"sample {sample.id} has masks of another length")
        if not any(sample.loss_mask):
            raise refused("a sample has loss tokens", f"sample {sample.id} has none")
        if sample.loss_mask[0]:
            raise refused("the first token is never predicted", f"sample {sample.id} trains it")
        if any(loss and not sampled for loss, sampled in zip(sample.loss_mask, sample.completion_mask, strict=True)):
            raise refused("only sampled tokens are trained", f"sample {sample.id} trains a token of somebody else")


def require_whole_trajectories(samples: Sequence[Sample]) -> None:
    """A sequence objective sums over all sampled tokens; one with a part left out is refused, not shortened."""
    for sample in samples:
        if sample.loss_mask != sample.completion_mask:
            raise refused("a log-ratio covers the whole trajectory", f"sample {sample.id} leaves sampled tokens out")


def require_rewards(samples: Sequence[Sample], calibrated: bool) -> None:
    """Rewards are known and lie in [0, 1]; values between are legal only as calibrated probabilities.

    Raises:
        RefusedError: a reward is missing, outside, or soft without calibration.
    """
    for sample in samples:
        if sample.reward is None:
            raise refused("no feedback is not a bad reward", f"sample {sample.id} has no reward")
        if not 0.0 <= sample.reward <= 1.0:  # NaN fails this too
            raise refused("rewards lie between 0 and 1", f"sample {sample.id} has {sample.reward}")
        if sample.reward not in (0.0, 1.0) and not calibrated:
            raise refused(
                "a soft reward is a calibrated probability of success", f"sample {sample.id} has {sample.reward}"
            )


def require_no_anchor(samples: Sequence[Sample]) -> None:
    """The trainer computes the anchor's log-probabilities of the whole buffer itself (one anchor per buffer)."""
    for sample in samples:
        if sample.reference_logprobs is not None:
            raise refused("one anchor per buffer", f"sample {sample.id} brings an anchor of its own")


def require_one_version(samples: Sequence[Sample], anchor: str | None = None) -> None:
    """What is estimated from the samples themselves belongs to the one policy that drew them: `anchor`, if named."""
    for sample in samples:
        if sample.policy_version is None:
            raise refused("one anchor per buffer", f"sample {sample.id} does not say which policy drew it")
        anchor = anchor or sample.policy_version
        if sample.policy_version != anchor:
            raise refused(
                "one anchor per buffer", f"sample {sample.id} was drawn by {sample.policy_version}, others by {anchor}"
            )


def require_groups(samples: Sequence[Sample]) -> dict[str, list[Sample]]:
    """The samples by their group, each of at least two: a group of one is its own baseline, and teaches nothing."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        if sample.group_id is None:
            raise refused("a group compares rollouts of one task", f"sample {sample.id} is in no group")
        if sample.annotations.get("num_rows", 1.0) != 1.0:
            raise refused("a rollout is one row of its group", f"sample {sample.id} is a part of one")
        groups.setdefault(sample.group_id, []).append(sample)
    for name, members in groups.items():
        if len(members) < 2:
            raise refused("a group of one has no group value", f"group {name} holds one rollout")
    return groups


def require_behavior(samples: Sequence[Sample]) -> None:
    """Every loss token has the log-probability that the engine gave it when it was drawn."""
    require_scored(samples, "behavior_logprobs", "a ratio needs the engine's own log-probabilities")


def require_scored(samples: Sequence[Sample], name: str, rule: str) -> None:
    """Every loss token has a value of `name`, as `rule` asks."""
    for sample in samples:
        known = sample.token_annotations.get(name, ())
        if len(known) != len(sample.token_ids) or any(
            used and value is None for used, value in zip(sample.loss_mask, known, strict=True)
        ):
            raise refused(rule, f"sample {sample.id} has none")


def require_pairs(samples: Sequence[Sample]) -> dict[str, list[Sample]]:
    """The samples by `group_id`: two of each, replies to one request."""
    pairs: dict[str, list[Sample]] = {}
    for sample in samples:
        if sample.group_id is None:
            raise refused("replies come in pairs", f"sample {sample.id} is in no group")
        pairs.setdefault(sample.group_id, []).append(sample)
    for name, pair in pairs.items():
        if len(pair) != 2:
            raise refused("replies come in pairs", f"group {name} holds {len(pair)}")
        if len({sample.token_ids[: sample.completion_mask.index(True)] for sample in pair}) > 1:
            raise refused("a pair answers one request", f"the sides of pair {name} begin differently")
    return pairs


def refused(rule: str, why: str, next_step: str = "") -> RefusedError:
    """A broken requirement, by its name. Without `next_step` whoever knows where the rows came from adds one
    (`curation.legal.require_legal`)."""
    return RefusedError(f"The run is refused: {rule}.", f"{why[0].upper()}{why[1:]}.", next_step)
