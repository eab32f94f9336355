"""`nightschool export FORMAT --out FILE`: what was recorded, as a file that others read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nightschool.cli.answer import Answer, Call, Table
from nightschool.cli.naming import find_agent
from nightschool.cli.options import AgentOption, new_app

app = new_app()


@app.command()
def write(
    ctx: typer.Context,
    format: Annotated[str, typer.Argument(metavar="FORMAT", help="messages, atif, sft, preference or kto.")],
    out: Annotated[Path, typer.Option("--out", help="The file; it is replaced when the new one is whole.")],
    agent: AgentOption = None,
    unjudged: Annotated[bool, typer.Option("--unjudged", help="sft: also sessions nobody judged.")] = False,
    with_secrets: Annotated[bool, typer.Option("--with-secrets", help="Write what looks like a secret too.")] = False,
) -> Answer:
    """Write what was recorded, one JSON document a line.

    messages and atif hold everything an agent said; sft, preference and kto only what may train, by its feedback.
    A file with something that looks like a secret is refused.

    Example: nightschool export sft --agent support-shop --out sft.jsonl
    """
    from nightschool.imports.exporting import Order, export

    call: Call = ctx.obj
    with call.store() as store, call.progress.phase(f"Writing {out.name}", f"Wrote {out.name}"), store.read() as conn:
        name = find_agent(conn, store.tenant, agent, call.config)
        order = Order(format, name, out.expanduser(), unjudged, with_secrets)
        written = export(conn, store.tenant, order, lambda done, of: call.progress.say(f"{done} of {of} sessions"))
    sentence = f"Wrote {written.rows} rows from {written.sessions} sessions of {name} to {out}."
    rows = tuple((why, str(count)) for why, count in (+written.left_out).most_common())
    tables = (Table(rows, ("left out", "how many"), right=(1,), wraps=(0,)),) if rows else ()
    data = written.as_json() | {"format": format, "agent": name, "file": str(out)}
    return Answer("export", sentence, data, tables)
