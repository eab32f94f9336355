"""How far predicted probabilities can be believed: the report, what it forbids, and what it earns.

Rows are cut into bins of about equal size by what was predicted, never between equal predictions, and into the slices
that the caller names. The gap of such a part is its weighted mean prediction less its weighted mean outcome. Its
standard error counts principals, not rows, and is never below the one that outcomes drawn at the predicted rates would
have. Predictions are those of models that saw neither the row nor a whole fold of principals: leaving out one alone
predicts least where the row itself did best, and cutting bins by such predictions would tell outcomes apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from nightschool.errors import RefusedError
from nightschool.types import Json

NUM_BINS = 5
SURE = 0.05  # of a false refusal, over all parts together
OFF = 0.10
CLOSE = 0.05
Z_80 = 1.2815515655446004  # lower end of an 80 % interval
Z_95 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What happened, (N,) each: outcomes in [0, 1], weights, whose they are, slices of the traffic ("" for none)."""

    targets: np.ndarray
    weights: np.ndarray
    principals: Sequence[str]
    slices: Sequence[str] = ()


def report(probabilities: np.ndarray, found: Outcomes) -> Json:
    """Brier score with its 95 % interval, beside that of always saying the mean, the expected calibration error, and
    each part.

    Of a part: `predicted`, `observed` with its 95 % interval, `gap` and its standard `error`, `rows`. The expected
    calibration error is the mean absolute gap of the bins, by weight.
    """
    targets, weights = found.targets, found.weights
    mean = float(np.average(targets, weights=weights))
    squares = (probabilities - targets) ** 2
    brier = float(np.average(squares, weights=weights))
    error = float(np.sqrt(_among(weights * (squares - brier), found.principals))) / float(weights.sum())
    counted = np.flatnonzero(weights > 0)
    rounded = np.round(probabilities[counted], 9)
    places = np.searchsorted(np.sort(rounded), rounded) * NUM_BINS // len(counted)
    bins = [counted[places == place] for place in sorted(set(places.tolist()))]
    reliability = [_part(probabilities, found, rows) for rows in bins]
    slices: dict[str, list[int]] = {}
    for row in counted.tolist() if found.slices else ():
        if found.slices[row]:
            slices.setdefault(found.slices[row], []).append(row)
    return {
        "rows": len(targets),
        "mean": mean,
        "log_loss": _log_loss(probabilities, targets, weights),
        "brier": brier,
        "brier_low": max(0.0, brier - Z_95 * error),
        "brier_high": min(1.0, brier + Z_95 * error),
        "brier_of_mean": float(np.average((mean - targets) ** 2, weights=weights)),
        "calibration_error": float(
            np.average([abs(part["gap"]) for part in reliability], weights=[weights[rows].sum() for rows in bins])
        ),
        "reliability": reliability,
        "slices": {name: _part(probabilities, found, np.array(rows)) for name, rows in slices.items()},
    }


def require_calibrated(found: Json, model: str) -> None:
    """Refuse a model of which some part is off by more than 0.10, as sure as 5 % over all parts allows (Bonferroni).

    Little data refuses nothing here: it makes errors wide, and the lower bounds that objectives read low.

    Raises:
        RefusedError: with the part and its figures.
    """
    parts = list(_parts(found))
    z = -float(special.ndtri(SURE / 2 / len(parts)))
    for name, part in parts:
        if abs(part["gap"]) - z * part["error"] > OFF:
            raise RefusedError(
                f"The {model} is not calibrated.",
                f"In {name} it says {part['predicted']:.2f} and {part['observed']:.2f} came true, of {part['rows']} "
                f"rows; the gap is more than {OFF:g} by {z:.2f} standard errors of {part['error']:.3f}.",
                "Use another value model, or wait for more feedback.",
            )


def earned_margin(found: Json) -> float | None:
    """0 where every part is known to be off by less than 0.05 (the upper end of an 80 % interval); else `None`.

    A model that is known to be right needs no insurance against being too high (`objectives.oapl`).
    """
    close = all(abs(part["gap"]) + Z_80 * part["error"] < CLOSE for _, part in _parts(found))
    return 0.0 if close else None


def notes(p_hat: np.ndarray, p_lo: np.ndarray, found: Json) -> list[dict[str, float]]:
    """What samples carry of a value model: one dictionary a row."""
    margin = earned_margin(found)
    more = {} if margin is None else {"margin": margin}
    return [{"p_hat": p, "p_lo": low, **more} for p, low in zip(p_hat.tolist(), p_lo.tolist(), strict=True)]


def _parts(found: Json) -> Iterable[tuple[str, Json]]:
    for place, part in enumerate(found["reliability"]):
        yield f"bin {place + 1} of {len(found['reliability'])}", part
    for name, part in found["slices"].items():
        yield f"slice {name}", part


def _log_loss(probabilities: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> float:
    """Nats a row. Edge: a probability of 0 or 1 counts as one of 1e-12 beside it."""
    p = np.clip(probabilities, 1e-12, 1 - 1e-12)
    return float(np.average(-targets * np.log(p) - (1 - targets) * np.log1p(-p), weights=weights))


def _among(off: np.ndarray, principals: Sequence[str] | np.ndarray) -> float:
    """The variance of a sum whose independent terms are those of whole principals."""
    sums = np.bincount(np.unique(np.asarray(principals), return_inverse=True)[1], off)
    return float(sums @ sums) * len(sums) / max(1, len(sums) - 1)


def _part(probabilities: np.ndarray, found: Outcomes, rows: np.ndarray) -> Json:
    p, targets, weights = probabilities[rows], found.targets[rows], found.weights[rows]
    total = float(weights.sum())
    predicted, observed = float(weights @ p) / total, float(weights @ targets) / total
    off = weights * (p - targets - (predicted - observed))
    among = _among(off, np.asarray(found.principals)[rows])
    error = float(np.sqrt(max(among, float((weights**2) @ (p * (1 - p)))))) / total
    return {
        "predicted": predicted,
        "observed": observed,
        "low": max(0.0, observed - Z_95 * error),
        "high": min(1.0, observed + Z_95 * error),
        "gap": predicted - observed,
        "error": error,
        "rows": len(rows),
    }
