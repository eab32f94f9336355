"""Free text as a calibrated probability of success, learned where people left both a text and a thumb."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from nightschool.errors import TooLittleDataError
from nightschool.types import Json
from nightschool.valuation.calibration import WordModel, fit_word_model
from nightschool.valuation.reliability import Outcomes, report

MIN_PAIRS = 30
MIN_PER_CLASS = 8
MIN_PRINCIPALS = 5


@dataclass(frozen=True, slots=True)
class TextCalibrator:
    """P(success | text). `version` names the pairs it was fitted on; `report` holds its Brier score.

    `cross_fitted` are its honest probabilities for the pairs themselves, in their order.
    """

    words: WordModel
    cross_fitted: np.ndarray
    version: str
    report: Json

    def probabilities(self, texts: Sequence[str]) -> np.ndarray:
        """(N,) calibrated probabilities that the session behind each text was a success."""
        return special.expit(self.words.predict(texts)[0])


def fit_text_calibrator(texts: Sequence[str], thumbs: Sequence[bool], principals: Sequence[str]) -> TextCalibrator:
    """Fit on the sessions that carry both.

    Raises:
        TooLittleDataError: fewer than 30 pairs, 8 per class, or 5 principals; texts then stay unused.
    """
    targets = np.asarray(thumbs, dtype=float)
    up, down = int(targets.sum()), int(len(targets) - targets.sum())
    for found, needed, name in (
        (len(targets), MIN_PAIRS, "sessions carry a text and a thumb"),
        (up, MIN_PER_CLASS, "of them are thumbs up"),
        (down, MIN_PER_CLASS, "of them are thumbs down"),
        (len(set(principals)), MIN_PRINCIPALS, "users wrote them"),
    ):
        if found < needed:
            raise TooLittleDataError("Texts stay unused.", f"{found} {name}; {needed} would do.", "Wait for feedback.")
    weights = np.ones(len(targets))
    words = fit_word_model(texts, targets, weights, principals)
    cross_fitted = special.expit(words.log_odds)
    pairs = json.dumps(sorted(zip(texts, map(bool, thumbs), principals, strict=True)), ensure_ascii=True)
    version = "text-1-" + hashlib.sha256(pairs.encode()).hexdigest()[:12]
    return TextCalibrator(words, cross_fitted, version, report(cross_fitted, Outcomes(targets, weights, principals)))
