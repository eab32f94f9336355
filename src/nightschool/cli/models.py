"""`nightschool models`: base models on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from nightschool.cli.answer import Answer, Call, Table
from nightschool.cli.options import new_app

app = new_app()


@app.callback()
def models() -> None:
    """Fetch and list base models.

    Any local folder with a config.json and safetensors, or a hub id, works too: give it to --model.

    Example: nightschool models fetch smollm2-135m
    """


@app.command()
def fetch(
    ctx: typer.Context, name: Annotated[str, typer.Argument(help="A name that `models list` shows.")] = "smollm2-135m"
) -> Answer:
    """Download a known model, verify its checksum and convert it once.

    Example: nightschool models fetch smollm2-135m
    """
    from nightschool.models.fetch import fetch_model

    call: Call = ctx.obj
    with call.progress.phase(f"Fetching {name}", f"Fetched {name}, checksum ok"):
        folder = fetch_model(name, lambda line: call.progress.say(f"Fetching {name}: {line}"))
    facts = {"name": name, "folder": str(folder)}
    return Answer("models.fetch", f"{name} lies in {folder}.", facts, (), f"nightschool up --model {name}")


@app.command(name="list")
def list_models(ctx: typer.Context) -> Answer:
    """Show the models that can be fetched, and which of them are here.

    Example: nightschool models list
    """
    from nightschool.models.fetch import KNOWN, models_folder

    rows, data = [], []
    for name, known in KNOWN.items():
        folder = models_folder() / name
        here = (folder / "config.json").exists()
        rows.append(
            (name, "here" if here else "not fetched", known.license, str(folder) if here else known.requirement)
        )
        data.append({"name": name, "here": here, "license": known.license, "folder": str(folder) if here else None})
    num_here = sum(model["here"] for model in data)
    table = Table(tuple(rows), ("model", "state", "license", "from"))
    sentence = f"{num_here} of {len(data)} known models on this machine."
    hint = "" if num_here == len(data) else f"nightschool models fetch {next(m['name'] for m in data if not m['here'])}"
    return Answer("models.list", sentence, {"models": data}, (table,), hint)
