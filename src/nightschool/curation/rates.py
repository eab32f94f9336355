"""How often an agent succeeds, by those who spoke and by what can be known of the silent."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import sqlalchemy as sa
from scipy import special

from nightschool.curation.dataset import Wanted, reward_rule
from nightschool.curation.trajectories import load_trajectories
from nightschool.errors import TooLittleDataError
from nightschool.feedback.polling import POLLED
from nightschool.feedback.reward import combine
from nightschool.store.schema import exchanges
from nightschool.types import Json, Split
from nightschool.valuation.calibration import fit_word_model
from nightschool.valuation.missing import Bounds, Heard, asked_bounds, spoken_rate, stratified_rate
from nightschool.valuation.rates import Mean


def success_rates(conn: sa.Connection, tenant: str, wanted: Wanted) -> Json:
    """The rate of all replies and sessions that could be judged, three ways; where there is too little, a reason.

    Rows of the gate's split are not looked at. The chance of speaking is learned from the words of requests,
    cross-fitted by user.
    """
    loaded = load_trajectories(conn, tenant, wanted.agent, wanted.as_of)
    units = list({t.vote: t for t in loaded.trajectories if t.split != Split.GATE}.values())
    judge, _ = reward_rule(conn, tenant, wanted, units)
    found = [combine(t.feedback, judge, t.principal).value for t in units]
    heard = np.array([value is not None for value in found], dtype=bool)
    rows = Heard(heard, np.array([value or 0.0 for value in found]), [t.principal for t in units])
    polled = _polled(conn, tenant, wanted.agent)
    asked = np.array([t.exchange_ids[-1] in polled for t in units], dtype=bool)

    def chances() -> np.ndarray:
        texts, ones = [t.request for t in units], np.ones(len(units))
        return special.expit(fit_word_model(texts, heard.astype(float), ones, rows.clusters).log_odds)

    return {
        "agent": wanted.agent,
        "replies": len(units),
        "judged": int(heard.sum()),
        "spoken": _or_why(lambda: spoken_rate(rows)),
        "stratified": _or_why(lambda: _by_strata(rows, chances)),
        "polled": _or_why(lambda: asked_bounds(rows.of(np.flatnonzero(asked)))),
    }


def _by_strata(rows: Heard, chances: Callable[[], np.ndarray]) -> Mean:
    spoken_rate(rows)  # too few need no model
    return stratified_rate(rows, chances())


def _or_why(estimate: Callable[[], Mean | Bounds]) -> Json:
    try:
        found = estimate()
    except TooLittleDataError as error:
        return {"why": error.why}
    if isinstance(found, Mean):
        return {"rate": found.value, "low": max(0.0, found.low), "high": min(1.0, found.high)}
    return {name: getattr(found, name) for name in Bounds.__slots__}


def _polled(conn: sa.Connection, tenant: str, agent: str) -> set[str]:
    x = exchanges.c
    query = sa.select(x.id, x.flags).where(x.tenant == tenant, x.agent == agent, x.flags.is_not(None))
    return {row.id for row in conn.execute(query) if POLLED in (row.flags or ())}
