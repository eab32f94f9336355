"""`nightschool plan`: memory, time and cost of a run, before anything is downloaded or started."""

from __future__ import annotations

from typing import Annotated

import typer

from nightschool.cli.answer import Answer, Call
from nightschool.cli.options import AgentOption, new_app

app = new_app()


@app.command()
def plan(
    ctx: typer.Context,
    objective: Annotated[str, typer.Option(help="One of those that `nightschool objectives` lists.")] = "oapl",
    data: Annotated[str | None, typer.Option(help="A file, or a dataset's digest, instead of the store.")] = None,
    agent: AgentOption = None,
    model: Annotated[str | None, typer.Option(help="A folder, a name or a size: 0.5b, 7b.")] = None,
    device: Annotated[str, typer.Option(help="this, l4, rtx4090, a100-40, a100, h100 or h200.")] = "this",
    price: Annotated[float | None, typer.Option(min=0.0, help="Of an hour on the device; no price, no cost.")] = None,
    sequences: Annotated[int | None, typer.Option(help="Describe the run instead: how many sequences.")] = None,
    prompt: Annotated[int, typer.Option(help="Prompt tokens of each sequence described.")] = 512,
    completion: Annotated[int, typer.Option(help="Sampled tokens of each.")] = 256,
    group_size: Annotated[int, typer.Option(help="Sequences that share a whole prompt.")] = 1,
    shared: Annotated[int, typer.Option(help="Prompt tokens that all sequences share.")] = 0,
    generate: Annotated[bool, typer.Option("--generate", help="Count the drawing of what is described, too.")] = False,
    rank: Annotated[int | None, typer.Option(min=1, help="Of the adapter; by default as configured.")] = None,
    token_budget: Annotated[int | None, typer.Option(min=1, help="Tokens of one pass.")] = None,
    dtype: Annotated[str | None, typer.Option(help="bfloat16, float32 or auto, of the base.")] = None,
) -> Answer:
    """Predict what `nightschool train` would take, and refuse what does not fit.

    It counts the tokens of the run with the trainer's own packing. On this machine the device is measured in a second,
    and past runs say how far off forecasts are; of other devices the maker's figures are taken.

    Example: nightschool plan --sequences 2000 --group-size 8 --model 7b --device h100 --price 2.5
    """
    from nightschool.cli import forecasts
    from nightschool.planning.numbers import Numbers

    call: Call = ctx.obj
    numbers = None if sequences is None else Numbers(sequences, prompt, completion, group_size, shared)
    knobs = {"rank": rank, "token_budget": token_budget, "dtype": dtype}
    wish = forecasts.Wish(
        objective, data, agent, model, numbers, {name: value for name, value in knobs.items() if value is not None}
    )
    return forecasts.answer(call, wish, forecasts.Place(device, price, generate))
