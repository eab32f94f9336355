"""What a token weighs when another policy sampled it: w = anchor / behavior, a constant of a window.

w is the first of two drifts, the engine's numbers and the versions between sampling and training. The second, the
updates since the window began, is the importance ratio inside the loss.

Implements: truncated and masked importance sampling per token and per sequence, rejection by geometric mean and by k3,
    decoupled PPO (Hilton et al., arXiv:2110.00641; Fu et al., arXiv:2505.24298). Bounds are the defaults of public
    implementations; those of IcePop are unverified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from nightschool.errors import RefusedError, TooLittleDataError
from nightschool.objectives.clipping import BEHAVIOR, Clip
from nightschool.objectives.legality import require_behavior, require_one_version
from nightschool.objectives.loss import Anchored
from nightschool.types import Sample

WEIGHT, ORIGIN = "importance_weight", "origin_logprobs"
MOST = 20.0  # nats: nothing is known of a weight beyond e^20


class Weighing(StrEnum):
    """From w to a weight. TRUNCATE: w cut to [low, high]. MASK: w where it lies in [low, high], else 0, which still
    counts in every mean. REJECT: sequences stay, with weight 1, or are left out, which counts nowhere.
    Of a token, of a sequence's product (a length trap: over long trajectories nearly everything falls outside),
    of its geometric mean, of its mean k3 = w - log w - 1."""

    NONE = "none"
    TRUNCATE_TOKEN = "tis-token"
    TRUNCATE_SEQUENCE = "tis-sequence"
    MASK_TOKEN = "mis-token"
    MASK_SEQUENCE = "mis-sequence"
    REJECT_GEOMETRIC = "geo-rs"
    REJECT_K3 = "k3-rs"


TRUNCATES = (Weighing.TRUNCATE_TOKEN, Weighing.TRUNCATE_SEQUENCE)
REJECTS = (Weighing.REJECT_GEOMETRIC, Weighing.REJECT_K3)


@dataclass(frozen=True, slots=True)
class Correction:
    """`normalized`: weights are divided by their mean, after they were cut."""

    weighing: Weighing = Weighing.NONE
    low: float = 0.0
    high: float = 2.0
    normalized: bool = False

    @property
    def weighs(self) -> bool:
        return self.weighing != Weighing.NONE


UNCORRECTED = Correction()
CORRECTIONS = {
    "none": UNCORRECTED,
    "tis-token": Correction(Weighing.TRUNCATE_TOKEN),
    "tis-sequence": Correction(Weighing.TRUNCATE_SEQUENCE),
    "mis-token": Correction(Weighing.MASK_TOKEN, 0.5),
    "icepop": Correction(Weighing.MASK_TOKEN, 0.5, 5.0),
    "decoupled": Correction(Weighing.MASK_TOKEN, 0.0, 5.0),
    "mis-sequence": Correction(Weighing.MASK_SEQUENCE, 0.0, 3.0),
    "geo-rs": Correction(Weighing.REJECT_GEOMETRIC, 0.999, 1.001),
    "k3-rs": Correction(Weighing.REJECT_K3, 0.0, 0.01),
}


def require_correction(samples: Sequence[Sample], correction: Correction, clip: Clip) -> None:
    """Raises: RefusedError where staleness would count twice or not at all, or behavior log-probabilities that are
    read are missing."""
    weighed, bypassed = correction.weighs, clip.against == BEHAVIOR
    if weighed and bypassed:
        raise RefusedError(
            "The run is refused: staleness is corrected once.",
            "A ratio to the behavior policy already holds what the weights would add.",
            "Take the ratio to the reference, or no weights.",
        )
    if weighed or bypassed or clip.divergence is not None:
        require_behavior(samples)
    if not weighed and not bypassed and any(sample.policy_version for sample in samples):
        require_one_version(samples)


def weigh(samples: Sequence[Sample], correction: Correction) -> Anchored:
    """Give each loss token its `importance_weight`, and tell how far the buffer is from its sampler.

    Figures, where the behavior is known: `weight_mean` and `weight_max` of what is compared with the bounds,
    `weight_clipped` the share outside, `effective_sample_size` (sum w)^2 / sum w^2 of the weights, counted in tokens or
    sequences; `behavior_kl` the mean k3(behavior || anchor) of a token.

    Raises:
        TooLittleDataError: every weight is 0.
    """
    if any(BEHAVIOR not in sample.token_annotations for sample in samples):
        return Anchored(list(samples))
    gaps = [_gap(sample) for sample in samples]
    raw = [_compared(gap, correction.weighing) for gap in gaps]
    weights = [_weights(one, correction) for one in raw]
    flat, used = np.concatenate(raw), np.concatenate(weights)
    if not used.any():
        why = f"Every weight lies outside {correction.low:g} and {correction.high:g}."
        raise TooLittleDataError("Nothing is left to study.", why, "Sample again, or widen the bounds.")
    figures = {
        "weight_mean": float(flat.mean()),
        "weight_max": float(flat.max()),
        "weight_clipped": float(1 - _inside(flat, correction).mean()),
        "effective_sample_size": float(used.sum() ** 2 / np.square(used).sum()),
        "behavior_kl": float(_k3(np.concatenate(gaps)).mean()),
    }
    if not correction.weighs:
        return Anchored(list(samples), figures)
    scale = used.mean() if correction.normalized else 1.0
    pairs = [
        (s, w / scale) for s, w in zip(samples, weights, strict=True) if w.any() or correction.weighing not in REJECTS
    ]
    return Anchored([noted(sample, WEIGHT, one) for sample, one in pairs], figures)


def behavior_kl(sample: Sample) -> np.ndarray:
    """k1 = log(behavior / origin) of each loss token, for a penalty in rewards; `origin_logprobs` are a fixed
    reference's, scored beforehand. Raises: RefusedError when either is missing."""
    require_behavior([sample])
    if ORIGIN not in sample.token_annotations:
        raise RefusedError(
            "The run is refused: a penalty needs the fixed reference's scores.",
            f"Sample {sample.id} has no {ORIGIN}.",
            "Score the rows under it, or set kl_weight to 0.",
        )
    return chosen(sample.token_annotations[BEHAVIOR], sample) - chosen(sample.token_annotations[ORIGIN], sample)


def chosen(values: Sequence[float | None] | None, sample: Sample) -> np.ndarray:
    """Values of the loss tokens."""
    assert values is not None, "scored before it is read"
    return np.array([x for x, used in zip(values, sample.loss_mask, strict=True) if used], dtype=np.float64)


def noted(sample: Sample, name: str, values: np.ndarray) -> Sample:
    """The sample with one value per loss token, or one for all of them, under `name`."""
    found = iter(np.broadcast_to(values, sum(sample.loss_mask)).tolist())
    row = tuple(next(found) if used else None for used in sample.loss_mask)
    return replace(sample, token_annotations={**sample.token_annotations, name: row})


def _gap(sample: Sample) -> np.ndarray:
    """log w of each loss token."""
    anchor, behavior = sample.reference_logprobs, sample.token_annotations[BEHAVIOR]
    return np.clip(chosen(anchor, sample) - chosen(behavior, sample), -MOST, MOST)


def _compared(gap: np.ndarray, weighing: Weighing) -> np.ndarray:
    """What is compared with the bounds: w of each token, or one number of the sequence."""
    if weighing in (Weighing.TRUNCATE_SEQUENCE, Weighing.MASK_SEQUENCE):
        return np.exp(np.clip(gap.sum(keepdims=True), -MOST, MOST))
    if weighing == Weighing.REJECT_GEOMETRIC:
        return np.exp(gap.mean(keepdims=True))
    return _k3(gap).mean(keepdims=True) if weighing == Weighing.REJECT_K3 else np.exp(gap)


def _inside(compared: np.ndarray, correction: Correction) -> np.ndarray:
    if not correction.weighs:
        return np.ones_like(compared, dtype=bool)
    return (correction.low <= compared) & (compared <= correction.high)


def _weights(compared: np.ndarray, correction: Correction) -> np.ndarray:
    if correction.weighing in TRUNCATES:
        return np.clip(compared, correction.low, correction.high)
    kept = 1.0 if correction.weighing in REJECTS else compared
    return np.where(_inside(compared, correction), kept, 0.0)


def _k3(gap: np.ndarray) -> np.ndarray:
    return np.exp(gap) - gap - 1
