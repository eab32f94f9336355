"""What may train with what: checked before a run, refused with the name of the rule (design laws 2, 3, 8)."""

from __future__ import annotations

from collections.abc import Sequence

from nightschool.errors import RefusedError, TooLittleDataError
from nightschool.types import Fidelity, Sample, Sampler


def reason_against(fidelity: Fidelity, sampler: Sampler) -> str | None:
    """Why a ratio objective may not use tokens drawn like this; `None` when it may.

    Ratios need the exact tokens, and a sampler whose whole distribution the trainer can recompute.
    """
    if fidelity == Fidelity.TEXT:
        return "text only"
    if sampler.temperature <= 0:
        return "greedy decoding"
    if sampler.constraints:
        return "constrained decoding"
    return None if sampler.full_support else "truncated support"


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
            raise _refused("masks cover every token", f"sample {sample.id} has masks of another length")
        if not any(sample.loss_mask):
            raise _refused("a sample has loss tokens", f"sample {sample.id} has none")
        if sample.loss_mask[0]:
            raise _refused("the first token is never predicted", f"sample {sample.id} trains it")
        if any(loss and not sampled for loss, sampled in zip(sample.loss_mask, sample.completion_mask, strict=True)):
            raise _refused("only sampled tokens are trained", f"sample {sample.id} trains a token of somebody else")


def require_whole_trajectories(samples: Sequence[Sample]) -> None:
    """A sequence objective sums over all sampled tokens; one with a part left out is refused, not shortened."""
    for sample in samples:
        if sample.loss_mask != sample.completion_mask:
            raise _refused("a log-ratio covers the whole trajectory", f"sample {sample.id} leaves sampled tokens out")


def require_rewards(samples: Sequence[Sample], calibrated: bool) -> None:
    """Rewards are known and lie in [0, 1]; values between are legal only as calibrated probabilities.

    Raises:
        RefusedError: a reward is missing, outside, or soft without calibration.
    """
    for sample in samples:
        if sample.reward is None:
            raise _refused("no feedback is not a bad reward", f"sample {sample.id} has no reward")
        if not 0.0 <= sample.reward <= 1.0:  # NaN fails this too
            raise _refused("rewards lie between 0 and 1", f"sample {sample.id} has {sample.reward}")
        if sample.reward not in (0.0, 1.0) and not calibrated:
            raise _refused(
                "a soft reward is a calibrated probability of success", f"sample {sample.id} has {sample.reward}"
            )


def require_no_anchor(samples: Sequence[Sample]) -> None:
    """The trainer computes the anchor's log-probabilities of the whole buffer itself (one anchor per buffer)."""
    for sample in samples:
        if sample.reference_logprobs is not None:
            raise _refused("one anchor per buffer", f"sample {sample.id} brings an anchor of its own")


def _refused(rule: str, why: str) -> RefusedError:
    return RefusedError(f"The run is refused: {rule}.", f"{why[0].upper()}{why[1:]}.", "Build the dataset again.")
