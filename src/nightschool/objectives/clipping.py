"""Settings of the clipped policy losses: how far an importance ratio counts, and a penalty for leaving a reference.

The losses themselves are `training.losses.clipped` and `training.losses.values`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

REFERENCE, BEHAVIOR = "reference_logprobs", "behavior_logprobs"


class Ratio(StrEnum):
    """Whose importance ratio: each token's own, or exp(mean of the token log-ratios) of its sequence."""

    TOKEN = "token"
    SEQUENCE = "sequence"


class Surrogate(StrEnum):
    """What is maximized of a token with ratio rho and advantage A; sg() stops the gradient.

    CLIPPED: min(rho A, clip(rho) A). CAPPED: sg(min(rho, cap)) A log pi; its value says nothing, its gradient does.
    SOFT: 4 / tau * sigma(tau (rho - 1)) A. GAMMA: sg(W^k e^(lambda (1 - W))) A log pi, W the product of a sequence's
    ratios.
    """

    CLIPPED = "clipped"
    CAPPED = "capped"
    SOFT = "soft"
    GAMMA = "gamma"


@dataclass(frozen=True, slots=True)
class Clip:
    """How far a ratio counts. CLIPPED: within 1 - `clip_low` and 1 + `clip_high`.

    `cap`: the largest ratio itself that CAPPED lets through (libraries differ: some mean 1 + cap). `dual`: where A < 0,
    a loss of at most -A * dual. `against`: the log-probabilities a ratio is taken to; those of the behavior policy
    leave no room for an off-policy weight. `divergence`: a sequence whose mean log(behavior / policy) exceeds it has no
    gradient where A < 0.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    ratio: Ratio = Ratio.TOKEN
    surrogate: Surrogate = Surrogate.CLIPPED
    cap: float = 5.0
    dual: float | None = None
    against: str = REFERENCE
    divergence: float | None = None


@dataclass(frozen=True, slots=True)
class Penalty:
    """`weight` * k3 of the policy to given log-probabilities `against`, per token.

    `corrected` multiplies it by the importance ratio, gradient included, which makes the gradient unbiased off-policy.
    """

    weight: float = 0.0
    against: str = REFERENCE
    corrected: bool = False


CLIP, DUAL_CLIP, NO_PENALTY = Clip(), Clip(dual=3.0), Penalty()
