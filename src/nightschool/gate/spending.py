"""Error spending: looking at a running exam a few times without paying for it in wrong promotions.

Implements: Lan & DeMets, Biometrika 70 (1983), 659-663, with the spending function that resembles O'Brien &
Fleming's boundary: alpha(t) = 2 - 2 Phi(z(1 - alpha/2) / sqrt(t)) for a one-sided alpha. Boundaries come from the
recursive integration of Armitage, McPherson & Rowe, JRSS A 132 (1969), 235-244.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import optimize, special

REACH = 8.0  # standard deviations beyond which a normal density is nothing
NODES = 401


def spent(fraction: float, alpha: float = 0.05) -> float:
    """Share of the error used up at an information fraction within 0 and 1."""
    if fraction >= 1:
        return alpha
    if fraction <= 0:
        return 0.0
    return float(2 * special.ndtr(special.ndtri(alpha / 2) / math.sqrt(fraction)))


def boundaries(counts: Sequence[int], planned: int, alpha: float = 0.05, final: bool = False) -> list[float]:
    """Critical z of each look at `counts` clusters out of `planned`; crossing any of them promotes.

    `final` says that the last count closes the exam: all that is left of alpha is spent there, however many
    came. Under an equal candidate the chance of ever crossing is alpha.
    """
    if not counts or list(counts) != sorted(set(counts)) or counts[0] < 1 or planned < 1:
        raise ValueError("looks happen at growing counts")
    cumulative = [spent(n / planned, alpha) for n in counts]
    if final:
        cumulative[-1] = alpha
    found: list[float] = []
    density: tuple[np.ndarray, np.ndarray] | None = None  # of the running sum, on paths that never crossed
    before, used = 0, 0.0
    for n, total in zip(counts, cumulative, strict=True):
        step = math.sqrt(n - before)
        bound = _bound(density, step, n, max(total - used, 0.0))
        found.append(bound)
        density = _advance(density, step, bound * math.sqrt(n))
        before, used = n, max(total, used)
    return found


def nominal(critical_z: float) -> float:
    """One-sided p at which a look crosses: what a t interval of the same look is drawn with."""
    return float(special.ndtr(-critical_z))


def _bound(density: tuple[np.ndarray, np.ndarray] | None, step: float, n: int, error: float) -> float:
    """z such that the paths alive so far cross it at this look with probability `error`."""
    if error < 1e-12:
        return REACH

    def crossing(z: float) -> float:
        level = z * math.sqrt(n)
        if density is None:
            return float(special.ndtr(-level / step))
        grid, weights = density
        return float(np.sum(weights * special.ndtr((grid - level) / step)))

    return float(optimize.brentq(lambda z: crossing(z) - error, -REACH, REACH))  # type: ignore[arg-type]


def _advance(density: tuple[np.ndarray, np.ndarray] | None, step: float, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Quadrature nodes and weights of the sum below `level` after one more step."""
    spread = step if density is None else math.hypot(step, float(np.abs(density[0]).max()) / REACH)
    grid, widths = _simpson(-REACH * spread, min(level, REACH * spread))
    if density is None:
        return grid, widths * _bell(grid / step) / step
    nodes, weights = density
    values = _bell((grid[:, None] - nodes[None, :]) / step) @ weights / step
    return grid, widths * values


def _simpson(low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    grid = np.linspace(low, high, NODES)
    factor = np.where(np.arange(NODES) % 2 == 1, 4.0, 2.0)
    factor[[0, -1]] = 1.0
    return grid, factor * (high - low) / (NODES - 1) / 3


def _bell(x: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
