"""What an agent's texts say of success: calibrated probabilities by the reader that knows best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import sqlalchemy as sa
from scipy import special

from nightschool.errors import RefusedError, TooLittleDataError
from nightschool.feedback.reading.calibration import Calibration, Heard, fit_calibration, hear_texts
from nightschool.feedback.reading.drift import State
from nightschool.feedback.reading.local import LOCAL, read_locally
from nightschool.feedback.reading.stored import current_readings, load_readings, said_in, said_of
from nightschool.feedback.reading.values import Reading
from nightschool.releases.aliases import BASE, current
from nightschool.types import Feedback, Json
from nightschool.valuation.rates import Judged, Mean, corrected_rate

DRIFTED = "its gap to people's labels has moved on replies of what serves now"


@dataclass(frozen=True, slots=True)
class Calibrated:
    """One reader's calibration on an agent's texts, or why there is none; `probabilities` by the feedback's id. `good`:
    the share of its texts about replies that went well, corrected for what it gets wrong as if labels were left at
    random; `None` where it tells good from bad no better than a coin."""

    reader: str
    calibration: Calibration | None
    why: str
    probabilities: Mapping[str, float]
    good: Mean | None = None

    @property
    def version(self) -> str:
        return self.reader if self.calibration is None else self.calibration.version

    @property
    def is_used(self) -> bool:
        """Whether its probabilities may be rewards."""
        return self.calibration is not None and self.calibration.drift.state != State.ALARM

    @property
    def log_loss(self) -> float:
        """Of its cross-fitted probabilities, in nats a text; infinite where there are none."""
        return math.inf if self.calibration is None else float(self.calibration.report["log_loss"])

    def of(self, feedback_ids: Sequence[str]) -> float | None:
        """P(success) by several texts about one target, `None` where it has not read all of them.

        Their log-odds are averaged, for texts about one thing depend on each other: together they are never surer than
        the surest of them, and two that contradict each other say little.
        """
        known = [self.probabilities[one] for one in feedback_ids if one in self.probabilities]
        if not known or len(known) < len(feedback_ids):
            return None
        return float(special.expit(special.logit(known).mean()))

    def as_json(self) -> Json:
        found = self.calibration
        told: Json = {"reader": self.reader, "used": self.is_used, "why": self.why or None}
        if found is not None:
            told |= {"version": found.version, "report": found.report, "drift": asdict(found.drift)}
            told["good"] = (
                None if self.good is None else {**asdict(self.good), "low": self.good.low, "high": self.good.high}
            )
        return told


def calibrate(conn: sa.Connection, tenant: str, agent: str, as_of: float | None = None) -> list[Calibrated]:
    """The rules, and the judges that read some text last, each with its calibration on the agent's texts."""
    heard = hear_texts(conn, tenant, agent, as_of)
    serving = current(conn, tenant, agent) or BASE
    said = (one for item in heard.texts if (one := said_of(item, ())) is not None)  # a score asks for no replies
    by_rules = {one.feedback_id: read_locally(one) for one in said}
    stored = load_readings(conn, tenant, [item.id for item in heard.texts], as_of)
    newest = ([reading.reader for reading in found if reading.votes][-1:] for found in stored.values())
    readers = [(LOCAL, by_rules)]
    for name in sorted({name for names in newest for name in names}):
        own = (reading for found in stored.values() for reading in found if reading.reader == name)
        readers.append((name, {reading.feedback_id: reading for reading in own}))
    return [_calibrated(name, readings, heard, serving) for name, readings in readers]


def _calibrated(name: str, readings: Mapping[str, Reading], heard: Heard, serving: str) -> Calibrated:
    scores = {feedback_id: reading.score for feedback_id, reading in readings.items()}
    try:
        found = fit_calibration(name, heard.labelled(scores), serving)
    except (TooLittleDataError, RefusedError) as error:
        return Calibrated(name, None, error.why, {})
    known = {feedback_id: found.probability(score) for feedback_id, score in scores.items() if score is not None}
    why = DRIFTED if found.drift.state == State.ALARM else ""
    return Calibrated(name, found, why, known, _good([score for score in scores.values() if score is not None], found))


def _good(scores: Sequence[float], found: Calibration) -> Mean | None:
    said = found.report
    judge = Judged(said["hits"], said["good"], said["passes"], said["bad"])
    try:
        return corrected_rate(sum(score > 0 for score in scores) / len(scores), len(scores), judge)
    except RefusedError:
        return None


def best_of(calibrated: list[Calibrated]) -> Calibrated | None:
    """Of the readers that may be used, the one whose cross-fitted probabilities cost least."""
    usable = [one for one in calibrated if one.is_used]
    return min(usable, key=lambda one: one.log_loss, default=None)


def read_now(
    conn: sa.Connection, tenant: str, items: Sequence[Feedback], readers: Mapping[str, list[Calibrated]]
) -> dict[str, Reading]:
    """What holds of each item (`stored.current_readings`), with the probability of its own reader's calibration on
    whichever agent's texts it is among."""
    known = {
        (one.reader, feedback_id): p
        for calibrated in readers.values()
        for one in calibrated
        for feedback_id, p in one.probabilities.items()
    }
    readings = current_readings(conn, tenant, said_in(conn, tenant, items))
    return {
        feedback_id: replace(reading, probability=known.get((reading.reader, feedback_id)))
        for feedback_id, reading in readings.items()
    }
