"""A learned value: ridge regression of rewards on hashed words, in closed form, without a vocabulary to keep.

Leaving one principal out needs no second fit: the rows of a group g, predicted by all others, err by
(I - H_g)^-1 (y - y_hat), H the hat matrix. Hence every estimate is exactly that of a fit that never saw its principal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import linalg

from nightschool.types import Json
from nightschool.valuation.calibration import fold_of
from nightschool.valuation.reliability import Z_80, Outcomes, report, require_calibrated
from nightschool.valuation.success import require_enough
from nightschool.valuation.words import CONSTANT, features_of

WIDTH = 256
RIDGE = 2.0


@dataclass(frozen=True, slots=True)
class LearnedValue:
    """`p_hat` and `p_lo` (N,) are estimates of the rows it was made from, each without its principal.

    Shapes: D features; `coefficients` (D,), `inverse` (D, D) of the penalized Gram matrix; `noise` is a variance.
    """

    coefficients: np.ndarray
    inverse: np.ndarray
    noise: float
    p_hat: np.ndarray
    p_lo: np.ndarray
    report: Json

    def predict(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """(p_hat, p_lo) of requests it has not seen. Shapes: (N,) each."""
        x = hashed(texts)
        return _bounds(x @ self.coefficients, self.noise * np.einsum("nd,de,ne->n", x, self.inverse, x))


def hashed(texts: Sequence[str]) -> np.ndarray:
    """Words and pairs of them as signed buckets, scaled to unit length, and a constant: (N, WIDTH + 1)."""
    x = np.zeros((len(texts), WIDTH + 1))
    for row, text in enumerate(texts):
        for feature in features_of(text):
            number = int.from_bytes(hashlib.blake2b(feature.encode(), digest_size=8).digest(), "big")
            x[row, (number >> 1) % WIDTH] += 1 - 2 * (number & 1)
        x[row] /= max(float(np.linalg.norm(x[row])), 1e-12)
        x[row, WIDTH] = CONSTANT
    return x


def fit_learned_value(
    texts: Sequence[str],
    rewards: Sequence[float],
    weights: Sequence[float],
    ages: Sequence[float],
    principals: Sequence[str],
    slices: Sequence[str] = (),
) -> LearnedValue:
    """Fit E[r | request]; arguments and refusals are those of `success.fit_success_model`."""
    targets = np.asarray(rewards, dtype=float)
    require_enough(targets, principals)
    decayed = np.asarray(weights, dtype=float) * 0.5 ** np.asarray(ages, dtype=float)
    x = hashed(texts)
    inverse = linalg.inv((x.T * decayed) @ x + RIDGE * np.eye(x.shape[1]))
    coefficients = inverse @ (x.T @ (decayed * targets))
    fitted = x @ coefficients

    def without(groups: Sequence[object]) -> tuple[np.ndarray, np.ndarray]:
        """Of each row, mean and variance (in units of the noise) of a fit that never saw its group."""
        means, spreads = np.zeros(len(targets)), np.zeros(len(targets))
        owners = np.unique(np.asarray(groups), return_inverse=True)[1]
        for owner in range(owners.max() + 1):
            mine = np.flatnonzero(owners == owner)
            own = x[mine] @ inverse @ x[mine].T
            undone = linalg.inv(np.eye(len(mine)) - own * decayed[mine])
            means[mine] = targets[mine] - undone @ (targets[mine] - fitted[mine])
            spreads[mine] = np.diag(undone @ own)
        return means, spreads

    means, spreads = without(principals)
    noise = float(np.average((targets - means) ** 2, weights=decayed))
    p_hat, p_lo = _bounds(means, noise * spreads)
    folded = np.clip(without([fold_of(principal) for principal in principals])[0], 0.0, 1.0)
    found = report(folded, Outcomes(targets, decayed, principals, slices))
    require_calibrated(found, "learned value")
    return LearnedValue(coefficients, inverse, noise, p_hat, p_lo, found)


def _bounds(means: np.ndarray, variances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.clip(means, 0.0, 1.0), np.clip(means - Z_80 * np.sqrt(variances), 0.0, 1.0)
