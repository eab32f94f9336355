"""The outcome model: the probability that a reply succeeds, from the words of the request and the tokens of the reply.

The success model knows the request alone; this one sees what was said. It weighs raters (`valuation.raters`), and is
no reward: a policy that learns from it learns its mistakes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from nightschool.types import Json
from nightschool.valuation.calibration import WordModel, fit_word_model
from nightschool.valuation.reliability import Outcomes, report, require_calibrated
from nightschool.valuation.success import require_enough
from nightschool.valuation.words import WORD, features_of

CROSSED = 16  # words and tokens of one exchange that are looked at in pairs, 256 at most


@dataclass(frozen=True, slots=True)
class Said:
    """A request and the sampled tokens of what was answered."""

    request: str
    reply: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OutcomeModel:
    """`probabilities` (N,) are cross-fitted: no principal's rows informed them."""

    words: WordModel
    probabilities: np.ndarray
    report: Json

    def predict(self, exchanges: Sequence[Said]) -> np.ndarray:
        """P(success | request, reply) of exchanges it has not seen, (N,)."""
        return special.expit(self.words.predict(exchanges)[0])


def fit_outcome_model(
    exchanges: Sequence[Said], rewards: Sequence[float], weights: Sequence[float], principals: Sequence[str]
) -> OutcomeModel:
    """Fit P(success | request, reply); `rewards` in [0, 1], `weights` the confidence of each.

    Raises:
        TooLittleDataError, RefusedError: as for a success model.
    """
    targets, counts = np.asarray(rewards, dtype=float), np.asarray(weights, dtype=float)
    require_enough(targets, principals)
    words = fit_word_model(exchanges, targets, counts, principals, features_of_exchange)
    probabilities = special.expit(words.log_odds)
    found = report(probabilities, Outcomes(targets, counts, principals))
    require_calibrated(found, "outcome model")
    return OutcomeModel(words, probabilities, found)


def features_of_exchange(said: Said) -> set[str]:
    """Words of the request, tokens of the reply, and pairs of one of each: an answer is right for what was asked."""
    tokens = list(dict.fromkeys(said.reply))
    words = list(dict.fromkeys(WORD.findall(said.request.lower())))
    crossed = {f"{word}*{token}" for word in words[:CROSSED] for token in tokens[:CROSSED]}
    return {*features_of(said.request), *(f"*{token}" for token in tokens), *crossed}
