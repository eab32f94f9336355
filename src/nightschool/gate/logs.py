"""What the held-out replies of the incumbent say of a candidate, read from the run that made it."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import sqlalchemy as sa

from nightschool.errors import TooLittleDataError
from nightschool.gate.off_policy import (
    LEAST_EFFECTIVE,
    Logged,
    Overlap,
    Standing,
    gain,
    least_gain,
    normalized_gain,
    overlap,
    sign_of_gain,
)
from nightschool.releases.aliases import BASE
from nightschool.store import schema
from nightschool.types import Json

Z_ONE_SIDED = 1.6448536269514722


def read_logs(conn: sa.Connection, tenant: str, candidate: str, incumbent: str) -> Logged | None:
    """Rated held-out replies of the incumbent, as the run that trained the candidate from it scored both.

    One trainer scored them in one process, at the temperature that sampled them; rows with a cut support never get
    there. Log-ratios of a run's windows add up: each begins where the last one ended. Edge: a row of which no success
    was expected counts from 0, which takes no side either. `None` where the candidate was made elsewhere, or from
    something else than what serves.
    """
    a, r = schema.adapters.c, schema.runs.c
    made = sa.select(r.summary, r.parent_digest).join(schema.adapters, (a.tenant == r.tenant) & (a.run_id == r.id))
    run = conn.execute(made.where(a.tenant == tenant, a.digest == candidate)).first()
    if run is None or (run.parent_digest or BASE) != incumbent:
        return None
    rows: dict[str, Json] = {}
    ratios: dict[str, float] = defaultdict(float)
    for window in run.summary.get("windows", ()):
        for row in window.get("held_out", ()):
            if row["version"] == incumbent:
                rows[row["exchange"]] = row
                ratios[row["exchange"]] += row["log_ratio"]
    e = schema.exchanges.c
    wanted = sa.select(e.id, e.principal).where(e.tenant == tenant, e.id.in_(rows))
    users = {found.id: found.principal for found in conn.execute(wanted)}
    ids = sorted(users)  # a reply that was deleted meanwhile speaks no more
    return Logged(
        np.array([ratios[name] for name in ids]),
        np.array([rows[name]["reward"] for name in ids], dtype=float),
        np.array([rows[name]["expected"] or 0.0 for name in ids], dtype=float),
        [users[name] for name in ids],
    )


def what_logs_say(rows: Logged | None) -> Json | None:
    """A sentence, the standing and its figures; a gain only where the standing allows one. `None` without rows."""
    if rows is None or not len(rows.rewards):
        return None
    try:
        seen = overlap(rows)
    except TooLittleDataError:
        told = f"Held-out replies do not tell its gain: {len(rows.rewards)} of one user."
        return {"standing": Standing.REFUSE, "sentence": told, "rows": len(rows.rewards)}
    standing = _standing(rows, seen)
    figures = {name: float(getattr(seen, name)) for name in Overlap.__slots__}
    found = {"standing": standing, "rows": len(rows.rewards), "users": len(set(rows.clusters)), **figures}
    if standing is Standing.REFUSE:
        return {**found, "sentence": _refusal(seen, len(rows.rewards))}
    least = least_gain(rows)
    found["least"] = {"value": least.value, "low": least.value - Z_ONE_SIDED * least.error}
    of_rows = f"By {len(rows.rewards)} held-out replies of the incumbent"
    if standing is Standing.SIGN:
        better = all(g.value - Z_ONE_SIDED * g.error > 0 for g in (gain(rows), sign_of_gain(rows)))
        told = (
            "the candidate is better; by how much" if better else "it is not shown that the candidate is better; what"
        )
        return {
            **found,
            "better": better,
            "sentence": f"{of_rows} {told} cannot be told at {seen.kl:.2f} nats of drift.",
        }
    by = gain(rows)
    found["gain"] = {"value": by.value, "low": by.low, "high": by.high}
    points = f"{100 * by.value:+.1f} points [{100 * by.low:+.1f}, {100 * by.high:+.1f}]"
    return {**found, "sentence": f"{of_rows} the candidate gains {points}."}


def _standing(rows: Logged, seen: Overlap) -> Standing:
    """That of the overlap; a level is claimed only where two ways to estimate it agree."""
    standing = seen.standing()
    if standing is Standing.LEVEL and abs(gain(rows).value - normalized_gain(rows).value) > gain(rows).error:
        return Standing.SIGN
    return standing


def _refusal(seen: Overlap, count: int) -> str:
    why = f"{count} rated ones weigh {seen.effective:.0f}"
    if seen.effective < LEAST_EFFECTIVE:
        return f"Held-out replies do not tell its gain: {why}, of {LEAST_EFFECTIVE} needed."
    if abs(seen.weight - 1) > 3 * seen.error:
        return (
            "Held-out replies do not tell its gain: their mean weight is "
            f"{seen.weight:.3f} ± {seen.error:.3f} where it should be 1, so it says what they never saw."
        )
    return f"Held-out replies do not tell its gain: it moved {seen.kl:.2f} nats a reply away from them."
