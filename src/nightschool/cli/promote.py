"""`nightschool promote CANDIDATE`: let a candidate serve that passed its exam."""

from __future__ import annotations

from typing import Annotated

import typer

from nightschool.cli.answer import Answer, Call
from nightschool.cli.options import AgentOption, ReasonOption, new_app, who

app = new_app()


@app.command()
def promote(
    ctx: typer.Context,
    candidate: Annotated[str, typer.Argument(help="v3, a digest or its first characters, or a run.")],
    agent: AgentOption = None,
    override: Annotated[bool, typer.Option("--override", help="Without a verdict; needs --reason.")] = False,
    reason: ReasonOption = "",
) -> Answer:
    """Move the alias to CANDIDATE, on a stored verdict that says promote over what serves now.

    Example: nightschool promote 80c2ab
    """
    from nightschool.cli.moves import moved
    from nightschool.cli.naming import find_agent, find_digest
    from nightschool.releases import aliases

    call: Call = ctx.obj
    with call.store() as store:
        with store.read() as conn:
            name = find_agent(conn, store.tenant, agent, call.config)
            digest = find_digest(conn, store.tenant, name, candidate)
        release = aliases.promote(store, name, digest, by=who(), reason=reason, override=override)
        return moved(store, "promote", release)
