"""`nightschool demo`: an agent gets better in two nights, on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from nightschool.cli.answer import Answer, Call
from nightschool.cli.options import new_app

app = new_app()


@app.command()
def demo(
    ctx: typer.Context,
    seed: Annotated[int, typer.Option(help="Which customers come, and in what mood.")] = 0,
    port: Annotated[int, typer.Option(help="The gateway's port; the next free one if it is taken.")] = 8700,
) -> Answer:
    """Serve a small shop's customers, study two nights, examine, release; then show what changed.

    Interrupted, it goes on where it stopped.

    Example: nightschool demo --seed 1
    """
    from nightschool.demo.story import Script, run

    call: Call = ctx.obj
    return run(call.config.state, Script(seed=seed), port, call.progress)
