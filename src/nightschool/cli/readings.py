"""`nightschool feedback read`: what texts mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nightschool.cli.answer import Answer, Call, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nightschool.feedback.reading.values import Reading
    from nightschool.types import Feedback, Json

LISTED = 50


def read(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many texts are shown.")] = LISTED,
) -> Answer:
    """Read the texts and corrections that nobody has read yet, and show the newest.

    Example: nightschool feedback read --limit 20
    """
    from nightschool.dashboard.formatting import plural
    from nightschool.feedback.reading.stored import current_readings, newest_texts, said_in
    from nightschool.feedback.reading.work import read_by_rules

    call: Call = ctx.obj
    with call.store() as store, call.progress.phase("Reading", "Read"):
        by_rules = read_by_rules(store, tell=call.progress.say)
        with store.read() as conn:
            items = newest_texts(conn, store.tenant, limit)
            readings = current_readings(conn, store.tenant, said_in(conn, store.tenant, items))
    found = [(item, readings[item.id]) for item in items if item.id in readings]
    hints = sum(reading.hint is not None for _, reading in found)
    sentence = f"{plural(by_rules, 'new text')} read; {hints} of the newest {len(found)} say what a teacher may hear."
    data = {"read": by_rules, "readings": [as_json(item, reading) for item, reading in found]}
    return Answer("feedback.read", sentence, data, (_table(found),), "nightschool objectives")


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
