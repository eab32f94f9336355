"""`nightschool rollback`: go back to the release before."""

from __future__ import annotations

import typer

from nightschool.cli.answer import Answer, Call
from nightschool.cli.options import AgentOption, ReasonOption, new_app, who

app = new_app()


@app.command()
def rollback(ctx: typer.Context, agent: AgentOption = None, reason: ReasonOption = "") -> Answer:
    """Move the alias back to the adapter that served before; again, and it goes further back.

    Example: nightschool rollback --reason complaints
    """
    from nightschool.cli.moves import moved
    from nightschool.cli.naming import find_agent
    from nightschool.releases import aliases

    call: Call = ctx.obj
    with call.store() as store:
        with store.read() as conn:
            name = find_agent(conn, store.tenant, agent, call.config)
        return moved(store, "rollback", aliases.roll_back(store, name, who(), reason))
