"""From a reader's score to a probability of success, by labels of people; and whether it still holds.

A label is a thumb of a user, an operator or an annotator on what a text is about; those of the last two go before a
user's. Sessions of the gate's split give none: what trains knows nothing of them. A map belongs to one version of a
reader, so that another model, prompt or rule starts without one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import sqlalchemy as sa
from scipy import optimize, special

from nightschool.errors import TooLittleDataError
from nightschool.feedback.reading.drift import Drift, drift_of
from nightschool.feedback.record import current_view, load_feedback
from nightschool.feedback.text import MIN_PAIRS, MIN_PER_CLASS, MIN_PRINCIPALS
from nightschool.store.schema import sessions
from nightschool.types import Feedback, FeedbackKind, Json, Purpose, Split
from nightschool.valuation.calibration import fold_of
from nightschool.valuation.logistic import fit_platt
from nightschool.valuation.reliability import Outcomes, report, require_calibrated

HUMANS = (("operator", "annotator"), ("end_user",))  # whose thumbs are labels, the surest first
MANY = 1000  # labels from which the map is any rising one, below it a logistic one
SUREST = 0.99  # of a level of the rising map
SURE = 12.0  # log-odds: no probability is 0 or 1


@dataclass(frozen=True, slots=True)
class Labelled:
    """A text's score beside what a person said of the same target; `version` is the policy that answered there."""

    feedback_id: str
    score: float
    is_good: bool
    principal: str
    version: str


@dataclass(frozen=True, slots=True)
class Heard:
    """What an agent's texts are, and what people say about the same targets."""

    texts: tuple[Feedback, ...]
    labels: Mapping[str, bool]
    sessions: Mapping[str, sa.Row]

    def labelled(self, scores: Mapping[str, float | None]) -> list[Labelled]:
        """The texts that have both a score and a label."""
        found = []
        for item in self.texts:
            score, label = scores.get(item.id), self.labels.get(item.id)
            if score is not None and label is not None:
                row = self.sessions[item.session_id or ""]
                found.append(Labelled(item.id, score, label, row.principal, row.policy_version))
        return found


@dataclass(frozen=True, slots=True)
class Map:
    """A rising map from scores to log-odds, through points (`at`, `log_odds`); flat beyond the last ones."""

    at: np.ndarray
    log_odds: np.ndarray

    def apply(self, scores: np.ndarray) -> np.ndarray:
        return np.interp(scores, self.at, self.log_odds)


@dataclass(frozen=True, slots=True)
class Calibration:
    """The map of one reader. `version` names it and the labels; `report` says how far it can be believed, with the
    reader's sensitivity and specificity; `cross_fitted` (N,) are honest probabilities of the labelled rows."""

    reader: str
    version: str
    map: Map
    cross_fitted: np.ndarray
    report: Json
    drift: Drift

    def probability(self, score: float) -> float:
        """P(success | score)."""
        return float(special.expit(np.clip(self.map.apply(np.array([score])), -SURE, SURE))[0])


def hear_texts(conn: sa.Connection, tenant: str, agent: str, as_of: float | None = None) -> Heard:
    """The texts about an agent's sessions that hold, and their labels. The gate's split and exams are left out."""
    s = sessions.c
    query = sa.select(s.id, s.principal, s.policy_version).where(
        s.tenant == tenant, s.agent == agent, s.purpose == Purpose.SERVE.value, s.split != Split.GATE.value
    )
    rows = {row.id: row for row in conn.execute(query)}
    current = current_view(load_feedback(conn, tenant, list(rows), as_of))
    thumbs: dict[tuple[str | None, str | None], list[Feedback]] = {}
    for item in current:
        if item.kind == FeedbackKind.THUMB:
            thumbs.setdefault((item.session_id, item.exchange_id), []).append(item)
    texts = tuple(item for item in current if item.kind == FeedbackKind.TEXT)
    labels = {item.id: _label(thumbs.get((item.session_id, item.exchange_id), ())) for item in texts}
    return Heard(texts, {name: label for name, label in labels.items() if label is not None}, rows)


def fit_calibration(reader: str, rows: Sequence[Labelled], serving: str) -> Calibration:
    """Fit the map of a reader. `serving` is the policy version that serves now, by which drift is measured.

    Raises:
        TooLittleDataError: fewer than 30 labels, 8 of either kind or 5 people; the reader then says nothing.
        RefusedError: what it says of some part of the texts is surely wrong.
    """
    targets = np.array([row.is_good for row in rows], dtype=float)
    good = int(targets.sum())
    people = [row.principal for row in rows]
    for found, needed, name in (
        (len(rows), MIN_PAIRS, "texts have a score and a person's thumb"),
        (good, MIN_PER_CLASS, "of them are thumbs up"),
        (len(rows) - good, MIN_PER_CLASS, "of them are thumbs down"),
        (len(set(people)), MIN_PRINCIPALS, "users wrote them"),
    ):
        if found < needed:
            why = f"{found} {name}; {needed} would do."
            raise TooLittleDataError(f"What {reader} reads is no probability yet.", why, "Label more texts by thumbs.")
    scores = np.array([row.score for row in rows])
    folds = np.array([fold_of(person) for person in people])
    log_odds = np.zeros(len(rows))
    for fold in sorted(set(folds.tolist())):
        inside, outside = folds == fold, folds != fold
        log_odds[inside] = _fit(scores[outside], targets[outside]).apply(scores[inside])
    cross_fitted = special.expit(log_odds)
    said = report(cross_fitted, Outcomes(targets, np.ones(len(rows)), people))
    require_calibrated(said, f"reader {reader}")
    said |= {
        "hits": int(((scores > 0) & (targets == 1)).sum()),
        "good": good,
        "passes": int(((scores <= 0) & (targets == 0)).sum()),
        "bad": len(rows) - good,
    }
    off = cross_fitted - targets
    drift = drift_of(off, people, [row.version == serving for row in rows])
    return Calibration(reader, _version(reader, rows), _fit(scores, targets), cross_fitted, said, drift)


def _fit(scores: np.ndarray, targets: np.ndarray) -> Map:
    """A logistic map; from many labels on any rising one (isotonic regression)."""
    if len(scores) < MANY:
        platt = fit_platt(scores, targets, np.ones(len(scores)))
        ends = np.array([-20.0, 20.0])
        return Map(ends, platt.slope * ends + platt.intercept)
    order = np.argsort(scores, kind="stable")
    levels, places = np.unique(scores[order], return_inverse=True)
    counts = np.bincount(places)
    means = np.bincount(places, targets[order]) / counts
    rising = np.clip(optimize.isotonic_regression(means, weights=counts).x, 1 - SUREST, SUREST)
    return Map(levels, special.logit(rising))


def _label(thumbs: Sequence[Feedback]) -> bool | None:
    """What people say of a target; `None` where the surest of them say nothing, or not the same."""
    for sources in HUMANS:
        said = {bool(thumb.value) for thumb in thumbs if thumb.source in sources}
        if said:
            return said.pop() if len(said) == 1 else None
    return None


def _version(reader: str, rows: Sequence[Labelled]) -> str:
    labels = json.dumps(sorted((row.feedback_id, bool(row.is_good)) for row in rows))
    return f"{reader}+{hashlib.sha256(labels.encode()).hexdigest()[:8]}"
