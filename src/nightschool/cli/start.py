"""`nightschool start ADAPTER`: the first release of an agent."""

from __future__ import annotations

from typing import Annotated

import typer

from nightschool.cli.answer import Answer, Call
from nightschool.cli.options import AgentOption, new_app, who

app = new_app()


@app.command()
def start(
    ctx: typer.Context,
    adapter: Annotated[str, typer.Argument(help="A digest or its first characters, a run, or base.")],
    agent: AgentOption = None,
) -> Answer:
    """Let ADAPTER serve an agent that serves nothing yet. Nothing is compared, so no exam is asked for.

    Example: nightschool start 80c2ab --agent support-shop
    """
    from nightschool.cli.moves import moved
    from nightschool.cli.naming import find_agent, find_digest
    from nightschool.releases import aliases

    call: Call = ctx.obj
    with call.store() as store:
        with store.read() as conn:
            name = find_agent(conn, store.tenant, agent, call.config)
            digest = find_digest(conn, store.tenant, name, adapter)
        return moved(store, "start", aliases.start(store, name, digest, who()))
