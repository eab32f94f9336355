"""Ridge logistic regression with soft targets, and the uncertainty of what it predicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg, optimize, special


@dataclass(frozen=True, slots=True)
class Logistic:
    """A fitted model. Shapes: D features; `factor` is the Cholesky factor of the Hessian, (D, D)."""

    coefficients: np.ndarray
    factor: np.ndarray

    def predict(self, x: Any) -> tuple[np.ndarray, np.ndarray]:
        """Linear predictor and its Laplace standard error, (N,) each."""
        dense = np.asarray(x.todense()) if hasattr(x, "todense") else np.asarray(x)
        half = linalg.solve_triangular(self.factor, dense.T, lower=True)
        return dense @ self.coefficients, np.sqrt((half**2).sum(axis=0))


def fit_logistic(
    x: Any, targets: np.ndarray, weights: np.ndarray, ridge: float, center: np.ndarray | None = None
) -> Logistic:
    """Minimize sum(weight * cross-entropy) + ridge / 2 * |coefficients - center|^2 by L-BFGS.

    Shapes: x (N, D) sparse or dense, targets (N,) in [0, 1], weights (N,) >= 0. Without `center`, zero.
    """
    width = x.shape[1]
    origin = np.zeros(width) if center is None else center

    def cost(coefficients: np.ndarray) -> tuple[float, np.ndarray]:
        eta = x @ coefficients
        off = coefficients - origin
        value = float(weights @ (np.logaddexp(0, eta) - targets * eta)) + 0.5 * ridge * float(off @ off)
        slope = x.T @ (weights * (special.expit(eta) - targets)) + ridge * off
        return value, slope

    found = optimize.minimize(cost, origin, jac=True, method="L-BFGS-B", options={"maxiter": 500, "gtol": 1e-7})
    p = special.expit(x @ found.x)
    dense = np.asarray(x.todense()) if hasattr(x, "todense") else np.asarray(x)
    hessian = dense.T @ (dense * (weights * p * (1 - p))[:, None]) + ridge * np.eye(width)
    return Logistic(found.x, linalg.cholesky(hessian, lower=True))


@dataclass(frozen=True, slots=True)
class Platt:
    """A monotone map from a score to log-odds: slope * score + intercept, with the covariance of the two."""

    slope: float
    intercept: float
    covariance: np.ndarray

    def apply(self, scores: np.ndarray, errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Calibrated log-odds and their standard errors: the score's own, and the map's."""
        x = np.column_stack([scores, np.ones_like(scores)])
        own = (x @ self.covariance * x).sum(axis=1)
        return self.slope * scores + self.intercept, np.sqrt((self.slope * errors) ** 2 + own)


def fit_platt(scores: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> Platt:
    """Calibrate cross-fitted scores, with a weak pull to the identity map.

    Edge: a negative slope means that the score ranks no better than chance; it becomes 0, and the map a
    constant.
    """
    x = np.column_stack([scores, np.ones_like(scores)])
    fitted = fit_logistic(x, targets, weights, ridge=1.0, center=np.array([1.0, 0.0]))
    if fitted.coefficients[0] >= 0:
        inverse = linalg.cho_solve((fitted.factor, True), np.eye(2))
        return Platt(float(fitted.coefficients[0]), float(fitted.coefficients[1]), inverse)
    flat = fit_logistic(np.ones((len(scores), 1)), targets, weights, ridge=1e-3)
    variance = np.zeros((2, 2))
    variance[1, 1] = 1 / flat.factor[0, 0] ** 2
    return Platt(0.0, float(flat.coefficients[0]), variance)
