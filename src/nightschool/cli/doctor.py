"""`nightschool doctor`: what is broken, and the command that mends it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from nightschool.cli.answer import Answer, Call, Table
from nightschool.cli.options import new_app

app = new_app()
BROKEN = 5


@app.command()
def doctor(
    ctx: typer.Context,
    security: Annotated[bool, typer.Option("--security", help="Who may reach this, and what is kept.")] = False,
) -> Answer:
    """Check Python, packages, disk, store, model, engine, gateway, token and bind; failures first.

    Example: nightschool doctor
    """
    from nightschool.cli.checks import BAD, GOOD, all_checks
    from nightschool.cli.posture import posture

    call: Call = ctx.obj
    found = posture(call) if security else all_checks(call)
    broken = [check for check in found if check.state == BAD]
    notes = [check for check in found if check.state not in (BAD, GOOD)]
    passed = [check.name for check in found if check.state == GOOD]
    shown = found if security else [*broken, *notes]
    rows = tuple((check.state, check.name, check.fact, check.mend) for check in shown)
    tones = tuple("worse" if check.state == BAD else "" for check in shown)
    evidence: list[Table | str] = (
        [Table(rows, ("", "check", "found", "mend it with"), tones, wraps=(2, 3))] if rows else []
    )
    evidence += [f"fine: {', '.join(passed)}"] if passed and not security else []
    counts = f"{len(broken)} of {len(found)} checks" if broken else f"All {len(found)} checks"
    sentence = f"{counts} {'failed' if broken else 'passed'}{f', {len(notes)} notes' if notes else ''}."
    data = {"checks": [asdict(check) for check in found]}
    return Answer("doctor", sentence, data, tuple(evidence), "", BROKEN if broken else 0)
