"""`nightschool record`: gateway and dashboard in front of any provider; no engine, no model, no GPU."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nightschool.cli.answer import Answer, Call, Table
from nightschool.cli.options import new_app

if TYPE_CHECKING:
    from nightschool.cli.running import Running
    from nightschool.config import Config
    from nightschool.types import Json

EVERY_DIALECT = ("chat", "completions", "responses", "messages")

app = new_app()


@app.command()
def record(
    ctx: typer.Context,
    upstream: Annotated[str | None, typer.Option(help="The provider's address, without /v1.")] = None,
    agent: Annotated[str | None, typer.Option(help="The name under which the traffic is kept.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    find_port: Annotated[bool, typer.Option("--find-port", help="Take the next free port if it is taken.")] = False,
) -> None:
    """Record the calls and the feedback of an agent whose model somebody else serves, until Ctrl-C.

    The caller's own key goes on to the provider and is kept nowhere.

    Example: nightschool record --upstream https://api.example.com
    """
    from nightschool.cli.output import show
    from nightschool.cli.serving import serve

    call: Call = ctx.obj
    asked = {"agent": agent, "host": host, "port": port}
    config = replace(call.config, **{name: value for name, value in asked.items() if value is not None})
    config = in_front_of(config, upstream)

    def ready(running: Running) -> None:
        show(_answer(running, config.state), call.as_json)
        call.progress.tell("Ctrl-C stops it.")

    serve(config, find_port, call.progress, ready)
    call.progress.tell("Stopped. Everything recorded is stored.")


def in_front_of(config: Config, url: str | None) -> Config:
    """The configuration with [upstream] at `url`; what the settings file says there wins over the defaults.

    Raises: ConfigError when neither names an http(s) address.
    """
    from nightschool.config import check_engine_url
    from nightschool.errors import ConfigError

    table: Json = {"speaks": EVERY_DIALECT, "gives_tokens": False, "any_model": True, **config.section("upstream")}
    if url is not None:
        table["url"] = url
    if not table.get("url"):
        raise ConfigError(
            "Nothing can be recorded.",
            "No provider is named.",
            "nightschool record --upstream https://api.example.com, or url below [upstream] in nightschool.toml",
        )
    check_engine_url(str(table["url"]))
    return replace(config, tables={**config.tables, "upstream": table})


def _answer(running: Running, state: Path) -> Answer:
    url = running.gateway_url
    rows = (
        ("base_url", f"{url}/v1", "for the agent's client, with its own key"),
        ("dashboard", f"{url}/", "for people"),
        ("upstream", running.engine_url, "answers; every model it serves can be asked for"),
        ("agent", running.agent, "the name under which the traffic is kept"),
        ("state", str(state), "where everything is kept"),
    )
    facts = {name: value for name, value in asdict(running).items() if name != "engine_key"}
    table = Table(rows, wraps=(1, 2))
    return Answer(
        "record", f"Recording: {url} in front of {running.engine_url}", {**facts, "state": str(state)}, (table,)
    )
