"""What signals mean for one agent: how often each is there, what it says and how surely, what all say together, and
whether that may train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import sqlalchemy as sa

from nightschool.errors import RefusedError, TooLittleDataError
from nightschool.feedback.implicit.combination import Combination, fit_combination
from nightschool.feedback.implicit.labels import Rows, rows_of
from nightschool.feedback.implicit.loading import each_seen
from nightschool.feedback.implicit.signals import AMOUNTS, about
from nightschool.feedback.reward import RewardRule
from nightschool.types import Json
from nightschool.valuation.clustered import Interval
from nightschool.valuation.reliability import Outcomes, report, require_calibrated
from nightschool.valuation.separation import auc, cluster_draws, share

NEWEST = 2000  # sessions that are read
MIN_LABELS = 50
MIN_PER_CLASS = 10
MIN_PRINCIPALS = 10
SHOWN = "Signals are shown, not trained."


@dataclass(frozen=True, slots=True)
class Learned:
    """Signals of an agent and what was learned of them. `against` says why they may not train, `None` where they may;
    without a `model` there were too few labels."""

    rows: Rows
    model: Combination | None
    report: Json
    against: str | None


def learn(
    conn: sa.Connection, tenant: str, agent: str, as_of: float, rule: RewardRule, newest: int = NEWEST
) -> Learned:
    """Read the newest sessions of an agent and weigh their signals by what people said of the same sessions."""
    return weigh(rows_of(each_seen(conn, tenant, agent, as_of, newest), rule))


def weigh(rows: Rows) -> Learned:
    judged = np.flatnonzero(rows.judged)
    labels, values = rows.labels[judged], rows.values[judged]
    people = rows.principals
    principals = [people[row] for row in judged]
    found: Json = {
        "sessions": len(rows.about),
        "labelled": len(judged),
        "failed": int((labels < 0.5).sum()),
        "principals": len(set(principals)),
        "model": None,
    }
    try:
        _require_enough(labels, principals)
    except TooLittleDataError as error:
        found |= {"trains": False, "why": error.why, "signals": _signals(rows, None, None)}
        return Learned(rows, None, found, error.why)
    draws = cluster_draws(principals)
    model = fit_combination(rows.names, values, labels, principals)
    measured = auc(-model.log_odds, labels < 0.5, draws, model.folds)
    told = report(model.p_hat, Outcomes(labels, np.ones(len(labels)), principals))
    against = _against(measured, told)
    found["model"] = {"auc": _json(measured), "ridge": model.scorer.ridge, **told}
    found |= {"trains": against is None, "why": against, "signals": _signals(rows, model, draws)}
    return Learned(rows, model, found, against)


def _require_enough(labels: np.ndarray, principals: Sequence[str]) -> None:
    failed = int((labels < 0.5).sum())
    for count, needed, name in (
        (len(labels), MIN_LABELS, "sessions with signals were judged"),
        (failed, MIN_PER_CLASS, "of them failed"),
        (len(labels) - failed, MIN_PER_CLASS, "of them went well"),
        (len(set(principals)), MIN_PRINCIPALS, "users judged them"),
    ):
        if count < needed:
            raise TooLittleDataError(SHOWN, f"{count} {name}; {needed} would do.", "Wait for feedback.")


def _against(measured: Interval | None, told: Json) -> str | None:
    """Why what was learned may not stand for a judgement."""
    if measured is None or measured.low <= 0.5:
        return "Together they tell failures apart no better than chance, as far as the judged sessions show."
    if told["brier"] >= told["brier_of_mean"]:
        return "Their probabilities are no closer to the truth than the mean is."
    try:
        require_calibrated(told, "combination of signals")
    except RefusedError as error:
        return f"{error.what} {error.why}"
    return None


def _signals(rows: Rows, model: Combination | None, draws: np.ndarray | None) -> list[Json]:
    """One entry a signal; what was learned is `None` where no labels say."""
    judged = rows.judged
    principals = np.asarray(rows.principals, dtype=object)
    failed = (rows.labels < 0.5).astype(float)
    told = []
    for place, name in enumerate(rows.names):
        values = rows.values[:, place]
        known, there = ~np.isnan(values), np.nan_to_num(values, nan=0.0) > 0
        entry: Json = {
            "name": name,
            "about": about(name),
            "known": int(known.sum()),
            "there": int((known & there).sum()),
            "fails_with": None,
            "fails_without": None,
            "auc": None,
            "says": None,
            "weight": None,
            "examples": [{"session_id": session, **asdict(span)} for session, span in rows.examples.get(name, ())],
        }
        if model is not None and draws is not None:
            with_, without = judged & known & there, judged & known & ~there
            if name not in AMOUNTS:
                entry["fails_with"] = _json(share(failed[with_], principals[with_].tolist()))
                entry["fails_without"] = _json(share(failed[without], principals[without].tolist()))
            mine = ~np.isnan(values[judged])
            measured = _single(values[judged][mine], failed[judged][mine] > 0, draws[:, mine])
            entry |= {"auc": _json(measured), "says": says(measured), "weight": _json(model.weights[place])}
        told.append(entry)
    return told


def _single(values: np.ndarray, failed: np.ndarray, draws: np.ndarray) -> Interval | None:
    """How well one signal tells failures. Edge: one that is the same everywhere tells nothing."""
    return auc(values, failed, draws) if len(values) and values.min() < values.max() else None


def says(measured: Interval | None) -> str | None:
    """What more of a signal means, where the interval leaves no doubt."""
    if measured is None:
        return None
    if measured.low > 0.5:
        return "failure"
    return "success" if measured.high < 0.5 else "cannot tell"


def _json(found: Interval | None) -> Json | None:
    return None if found is None else asdict(found)
