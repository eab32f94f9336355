"""The value of bounded real rewards: a calibrated model of words learns their exponential moment.

A reward r enters as its share of the way to the upper bound in units of exp(r / beta). The model's probability is then
the expected share, and its closed form is V* = beta log E exp(r / beta), which is also where LINEX is least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from scipy import special

from nightschool.errors import InputError, RefusedError
from nightschool.types import Json
from nightschool.valuation.calibration import WordModel, fit_word_model
from nightschool.valuation.reliability import Z_80, Outcomes, report, require_calibrated
from nightschool.valuation.soft_value import closed_form, linex, share_of
from nightschool.valuation.success import require_enough


@dataclass(frozen=True, slots=True)
class Scale:
    """Rewards lie between `low` and `high`; `beta` is the temperature of the value, no less than their distance."""

    beta: float = 1.0
    low: float = 0.0
    high: float = 1.0

    def value(self, share: float) -> float:
        return closed_form(share, self.beta, (self.low, self.high))


@dataclass(frozen=True, slots=True)
class MomentModel:
    """`value` and `value_lo` (N,) are cross-fitted estimates of V*, and the lower end of its 80 % interval.

    The report is that of shares, with the mean `linex` of the values and of one value for all.
    """

    words: WordModel
    scale: Scale
    value: np.ndarray
    value_lo: np.ndarray
    report: Json

    def predict(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """(value, value_lo) of requests it has not seen. Shapes: (N,) each."""
        return _values(*self.words.predict(texts), self.scale)


def fit_moment_model(
    texts: Sequence[str], rewards: Sequence[float], weights: Sequence[float], principals: Sequence[str], scale: Scale
) -> MomentModel:
    """Fit V* of requests from one bounded reward each. Soft rewards that are probabilities do not belong here: their
    value is the closed form of a success model.

    Raises:
        InputError: a reward outside the bounds.
        RefusedError: beta below the distance of the bounds, where the best few outcomes would decide; or shares that
            are surely not calibrated.
        TooLittleDataError: as for a success model.
    """
    if scale.beta < scale.high - scale.low:
        raise RefusedError(
            "The value is refused: beta spans the rewards.",
            f"At {scale.beta:g}, rewards from {scale.low:g} to {scale.high:g} are dominated by the few best.",
            "Raise beta, or scale the rewards down.",
        )
    if not all(scale.low <= reward <= scale.high for reward in rewards):
        raise InputError("A reward lies outside its bounds.", f"They are {scale.low:g} and {scale.high:g}.", "")
    shares = np.array([share_of(reward, scale.beta, (scale.low, scale.high)) for reward in rewards])
    require_enough(shares, principals)
    counts = np.asarray(weights, dtype=float)
    words = fit_word_model(texts, shares, counts, principals)
    value, value_lo = _values(words.log_odds, words.errors, scale)
    found = report(special.expit(words.log_odds), Outcomes(shares, counts, principals))
    require_calibrated(found, "moment model")
    alone = scale.value(float(np.average(shares, weights=counts)))
    found["linex"] = fmean(linex(r, v, scale.beta) for r, v in zip(rewards, value.tolist(), strict=True))
    found["linex_of_mean"] = fmean(linex(reward, alone, scale.beta) for reward in rewards)
    return MomentModel(words, scale, value, value_lo, found)


def _values(log_odds: np.ndarray, errors: np.ndarray, scale: Scale) -> tuple[np.ndarray, np.ndarray]:
    middle, low = special.expit(log_odds), special.expit(log_odds - Z_80 * errors)
    return np.array([scale.value(p) for p in middle.tolist()]), np.array([scale.value(p) for p in low.tolist()])
