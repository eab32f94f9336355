"""`nightschool feedback read`: what texts mean, and how far that can be believed."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from nightschool.cli.answer import Answer, Call, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nightschool.feedback.reading.values import Reading
    from nightschool.feedback.reading.verdicts import Calibrated
    from nightschool.types import Feedback, Json
    from nightschool.valuation.rates import Mean

LISTED = 50


def read(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many texts are shown.")] = LISTED,
) -> Answer:
    """Read the texts and corrections that nobody has read yet, and show the newest.

    The judge of [feedback.judge], where there is one, reads them as well, up to its budget.

    Example: nightschool feedback read --limit 20
    """
    from nightschool.dashboard.formatting import plural
    from nightschool.dashboard.queries.scope import agents
    from nightschool.feedback.reading.settings import judge_settings
    from nightschool.feedback.reading.stored import newest_texts
    from nightschool.feedback.reading.verdicts import calibrate, read_now
    from nightschool.feedback.reading.work import read_by_judge, read_by_rules

    call: Call = ctx.obj
    settings = judge_settings(call.config.section("feedback").get("judge"))
    with call.store() as store:
        with call.progress.phase("Reading by rules", "Read by rules"):
            by_rules = read_by_rules(store, tell=call.progress.say)
        judged = None
        if settings is not None:
            with call.progress.phase(f"Asking {settings.model}", f"Asked {settings.model}"):
                judged = read_by_judge(store, settings, call.progress.say)
        with store.read() as conn:
            items = newest_texts(conn, store.tenant, limit)
            readers = {agent: calibrate(conn, store.tenant, agent) for agent in agents(conn, store.tenant)}
            readings = read_now(conn, store.tenant, items, readers)
    found = [(item, readings[item.id]) for item in items if item.id in readings]
    hints = sum(reading.hint is not None for _, reading in found)
    sentence = f"{plural(by_rules, 'new text')} read; {hints} of the newest {len(found)} say what a teacher may hear."
    if judged is not None:
        sentence += f" The judge read {judged.read} in {plural(judged.requests, 'request')}; {judged.waiting} wait."
    data = {
        "read": by_rules,
        "judge": None if judged is None else asdict(judged),
        "readers": {agent: [one.as_json() for one in known] for agent, known in readers.items()},
        "readings": [as_json(item, reading) for item, reading in found],
    }
    following = "nightschool feedback read" if judged is not None and judged.waiting else "nightschool objectives"
    return Answer("feedback.read", sentence, data, (_table(found), _readers(readers)), following)


def as_json(item: Feedback, reading: Reading) -> Json:
    """One text with what it means."""
    return {
        "feedback": item.id,
        "session": item.session_id,
        "kind": item.kind.value,
        "text": item.value,
        "reader": reading.reader,
        "polarity": reading.polarity.value,
        "score": reading.score,
        "probability": reading.probability,
        "wish": reading.wish,
        "hint": reading.hint,
        "exchange": None if reading.place is None else reading.place.exchange_id,
        "turn": None if reading.place is None else reading.place.turn,
        "notes": list(reading.notes),
        "votes": list(reading.votes),
    }


def _table(found: Sequence[tuple[Feedback, Reading]]) -> Table:
    from nightschool.dashboard.formatting import number
    from nightschool.dashboard.marks import one_line
    from nightschool.feedback.reading.stored import text_of

    rows = []
    for item, reading in found:
        turn = "" if reading.place is None or reading.place.turn is None else str(reading.place.turn)
        hint = "; ".join(reading.notes) if reading.hint is None else one_line(reading.hint)
        sounds = reading.polarity.value
        sounds += "" if reading.probability is None else f" {number(reading.probability, 2)}"
        rows.append((one_line(text_of(item) or ""), sounds, one_line(reading.wish or ""), turn, hint))
    return Table(tuple(rows), ("text", "sounds", "wish", "turn", "for a teacher, or why not"), wraps=(0, 2, 4))


def _readers(readers: Mapping[str, Sequence[Calibrated]]) -> Table:
    rows = [
        (agent, one.reader, _believed(one), _moved(one), "" if one.good is None else _percent(one.good))
        for agent, known in readers.items()
        for one in known
    ]
    header = ("agent", "reader", "against people's labels", "since the last version", "% good")
    return Table(tuple(rows), header, wraps=(2, 3))


def _percent(good: Mean) -> str:
    from nightschool.dashboard.formatting import share

    return share(good.value, max(0.0, good.low), min(1.0, good.high))


def _believed(one: Calibrated) -> str:
    from nightschool.dashboard.formatting import interval

    if one.calibration is None:
        return f"no probability: {one.why}"
    said = one.calibration.report
    brier = interval(said["brier"], said["brier_low"], said["brier_high"])
    return f"Brier {brier} on {said['rows']} labels, {said['brier_of_mean']:.2f} for always the mean"


def _moved(one: Calibrated) -> str:
    from nightschool.dashboard.formatting import interval

    if one.calibration is None:
        return ""
    drift = one.calibration.drift
    if drift.moved is None:
        return f"{drift.state.value}: {drift.rows_now} now, {drift.rows_before} before"
    return f"{drift.state.value}: gap moved {interval(drift.moved, drift.low, drift.high)}"
