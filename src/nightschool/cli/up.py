"""`nightschool up`: everything in one command."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from nightschool.cli.answer import Answer, Call, Table
from nightschool.cli.options import new_app
from nightschool.cli.running import Running

app = new_app()


@app.command()
def up(
    ctx: typer.Context,
    agent: Annotated[str | None, typer.Option(help="The name the base model serves until it has a release.")] = None,
    model: Annotated[str | None, typer.Option(help="A folder, a fetched name or a hub id.")] = None,
    engine: Annotated[str | None, typer.Option(help="URL of an engine that already runs, instead of ours.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    find_port: Annotated[bool, typer.Option("--find-port", help="Take the next free port if it is taken.")] = False,
) -> None:
    """Start the engine, the gateway and the dashboard, and keep them running until Ctrl-C.

    Example: nightschool up --agent support-shop
    """
    from nightschool.cli.output import show
    from nightschool.cli.serving import serve

    call: Call = ctx.obj
    asked = {"agent": agent, "model": model, "engine_url": engine, "host": host, "port": port}
    config = replace(call.config, **{name: value for name, value in asked.items() if value is not None})

    def ready(running: Running) -> None:
        show(_answer(running, config.state), call.as_json)
        call.progress.tell("Ctrl-C stops it.")

    serve(config, find_port, call.progress, ready)
    call.progress.tell("Stopped. Everything recorded is stored.")


def _answer(running: Running, state: Path) -> Answer:
    url = running.gateway_url
    rows = (
        ("base_url", f"{url}/v1", "for the agent's client"),
        ("dashboard", f"{url}/", "for people"),
        ("agent", running.agent, "the name to ask for as model"),
        ("state", str(state), "where everything is kept"),
    )
    facts = {name: value for name, value in asdict(running).items() if name != "engine_key"}
    return Answer("up", f"Nightschool is up: {url}", {**facts, "state": str(state)}, (Table(rows, wraps=(1, 2)),))
