"""The success model: the probability that recent versions of an agent succeed on a request, from its words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from nightschool.errors import TooLittleDataError
from nightschool.types import Json
from nightschool.valuation.calibration import WordModel, fit_word_model
from nightschool.valuation.reliability import Z_80, Outcomes, report, require_calibrated

MIN_ROWS = 40
MIN_PER_CLASS = 8
MIN_PRINCIPALS = 5


@dataclass(frozen=True, slots=True)
class SuccessModel:
    """`p_hat` and `p_lo` (N,) are cross-fitted estimates of the rows it was made from, in their order."""

    words: WordModel
    p_hat: np.ndarray
    p_lo: np.ndarray
    report: Json

    def predict(self, requests: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """(p_hat, p_lo) of requests it has not seen. Shapes: (N,) each."""
        return _bounds(*self.words.predict(requests))


def fit_success_model(
    requests: Sequence[str],
    rewards: Sequence[float],
    weights: Sequence[float],
    ages: Sequence[float],
    principals: Sequence[str],
    slices: Sequence[str] = (),
) -> SuccessModel:
    """Fit P(success | request) on labelled sessions.

    `rewards` in [0, 1]; `weights` the confidence of each label. `ages` in half-lives: a row counts
    2^-age, so that what older versions achieved fades. `slices` names parts of the traffic for the report.

    Raises:
        TooLittleDataError: fewer than 40 rows, 8 of a class or 5 principals, or all rewards equal.
        RefusedError: what it says of some part of the traffic is surely wrong (`reliability.require_calibrated`).
    """
    targets = np.asarray(rewards, dtype=float)
    require_enough(targets, principals)
    decayed = np.asarray(weights, dtype=float) * 0.5 ** np.asarray(ages, dtype=float)
    words = fit_word_model(requests, targets, decayed, principals)
    p_hat, p_lo = _bounds(words.log_odds, words.errors)
    found = report(p_hat, Outcomes(targets, decayed, principals, slices))
    require_calibrated(found, "success model")
    return SuccessModel(words, p_hat, p_lo, found)


def _bounds(log_odds: np.ndarray, errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return special.expit(log_odds), special.expit(log_odds - Z_80 * errors)


def require_enough(targets: np.ndarray, principals: Sequence[str]) -> None:
    """What any value model needs. Raises: TooLittleDataError, with the number that would do."""
    good = int((targets > 0.5).sum())
    counts = {"good": good, "bad": len(targets) - good}
    wait = "Wait for more feedback, then: nightschool train"
    if len(targets) and (targets == targets[0]).all():
        raise TooLittleDataError(
            "The night was not studied.",
            f"All {len(targets)} judgements are equal ({targets[0]:g}); there is nothing to tell apart.",
            wait,
        )
    if len(targets) < MIN_ROWS:
        raise TooLittleDataError(
            "The night was not studied.", f"{len(targets)} sessions carry feedback; {MIN_ROWS} would do.", wait
        )
    for name, count in counts.items():
        if count < MIN_PER_CLASS:
            raise TooLittleDataError(
                "The night was not studied.", f"{count} sessions were rated {name}; {MIN_PER_CLASS} would do.", wait
            )
    if len(set(principals)) < MIN_PRINCIPALS:
        raise TooLittleDataError(
            "The night was not studied.",
            f"The feedback comes from {len(set(principals))} users; {MIN_PRINCIPALS} would do.",
            wait,
        )
