"""`nightschool objectives`: which of them may learn from what there is, which one is advised, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nightschool.cli.answer import Answer, Call, Table
from nightschool.cli.naming import find_agent
from nightschool.cli.options import AgentOption, new_app

app = new_app()


@app.command()
def objectives(
    ctx: typer.Context,
    data: Annotated[Path | None, typer.Option(help="Look at a file instead of what is recorded.")] = None,
    agent: AgentOption = None,
) -> Answer:
    """Try every objective on what is recorded, or on a file, up to the point where a model would be loaded.

    Example: nightschool objectives --agent support-shop
    """
    import time

    from nightschool.curation.dataset import Wanted
    from nightschool.curation.legal import try_all
    from nightschool.models.fetch import find_model
    from nightschool.objectives.advice import advise
    from nightschool.releases.aliases import BASE, current
    from nightschool.rendering.renderer import Renderer

    call: Call = ctx.obj
    renderer = Renderer.from_folder(find_model(call.config.model))
    with call.store(create=data is not None) as store, store.read() as conn:
        name = find_agent(conn, store.tenant, agent, call.config)
        wanted = Wanted(name, current(conn, store.tenant, name) or BASE, time.time())
        tried = list(try_all(conn, store.tenant, wanted, renderer, data))
    advice = advise({one.objective.name: one.num_rows for one in tried if one.against is None})
    legal = [one for one in tried if one.against is None]
    place = f"{name}'s sessions" if data is None else data.name
    sentence = f"{len(legal)} of {len(tried)} objectives may learn from {place}."
    if advice is not None:
        sentence += f" Advised: {advice.name}, since {advice.why}."
    else:
        sentence += " None is advised: there is too little."
    rows = tuple((one.objective.name, _rows(one.num_rows), one.against or one.objective.material) for one in tried)
    table = Table(rows, ("objective", "rows", "learns from, or why not"), right=(1,), wraps=(2,))
    found = [{"name": one.objective.name, "rows": one.num_rows, "against": one.against} for one in tried]
    answer = {"agent": name, "advised": None if advice is None else advice.name, "objectives": found}
    following = "nightschool status"
    if advice is not None:
        following = f"nightschool train --objective {advice.name}" + (f" --data {data}" if data else "")
    return Answer("objectives", sentence, answer, (table,), following)


def _rows(count: int) -> str:
    return str(count) if count else "–"
