"""A calibrated model of words, cross-fitted by principal: no row ever informs what is predicted of its author."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nightschool.valuation.logistic import Logistic, Platt, fit_logistic, fit_platt
from nightschool.valuation.words import Features, Vocabulary, features_of

FOLDS = 5
RIDGE = 0.5


@dataclass(frozen=True, slots=True)
class WordModel:
    """A calibrated logistic model of texts, and its honest predictions of the texts it was made from.

    `log_odds` and `errors` (N,) are cross-fitted: no principal's rows informed them.
    """

    vocabulary: Vocabulary
    logistic: Logistic
    platt: Platt
    log_odds: np.ndarray
    errors: np.ndarray

    def predict(self, texts: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Calibrated log-odds and standard errors of new texts, (N,) each."""
        return self.platt.apply(*self.logistic.predict(self.vocabulary.matrix(texts)))


def fit_word_model(
    texts: Sequence[Any],
    targets: np.ndarray,
    weights: np.ndarray,
    principals: Sequence[str],
    features: Features = features_of,
) -> WordModel:
    """Fit on all rows, and once per fold without it for the cross-fitted scores the calibration rests on."""

    def fit(rows: Sequence[int]) -> tuple[Vocabulary, Logistic]:
        chosen = [texts[row] for row in rows]
        vocabulary = Vocabulary.of(chosen, features)
        return vocabulary, fit_logistic(vocabulary.matrix(chosen), targets[rows], weights[rows], RIDGE)

    folds = np.array([fold_of(principal) for principal in principals])
    scores, errors = np.zeros(len(texts)), np.zeros(len(texts))
    for fold in sorted(set(folds.tolist())):
        inside, outside = np.flatnonzero(folds == fold).tolist(), np.flatnonzero(folds != fold).tolist()
        vocabulary, logistic = fit(outside)
        scores[inside], errors[inside] = logistic.predict(vocabulary.matrix([texts[i] for i in inside]))
    platt = fit_platt(scores, targets, weights)
    return WordModel(*fit(range(len(texts))), platt, *platt.apply(scores, errors))


def fold_of(principal: str) -> int:
    return int.from_bytes(hashlib.sha256(principal.encode()).digest()[:8], "big") % FOLDS
