"""`nightschool train`: a candidate by any objective, from what the agent lived through or from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nightschool.cli.answer import Answer, Call
from nightschool.cli.options import AgentOption, new_app

app = new_app()


@app.command()
def train(
    ctx: typer.Context,
    objective: Annotated[str, typer.Option(help="One of those that `nightschool objectives` lists.")] = "oapl",
    data: Annotated[Path | None, typer.Option(help="Learn from a file, one JSON object a line.")] = None,
    agent: AgentOption = None,
    resume: Annotated[str | None, typer.Option(help="Go on with this run.")] = None,
    start: Annotated[str | None, typer.Option(help="Begin at serving, base or an adapter's digest.")] = None,
    model: Annotated[str | None, typer.Option(help="The base model; a folder, a fetched name or a hub id.")] = None,
    teacher: Annotated[
        str | None, typer.Option(help="Who teaches: a model as in --model, an adapter's digest, an engine's URL.")
    ] = None,
) -> Answer:
    """Train a candidate in this process, and install its adapter. It serves nobody before its exam.

    Without --data it learns from what is recorded. Rows of a file are {messages, tools?} to imitate, {prompt, chosen,
    rejected} to prefer, {prompt, completion, label} to judge, {prompt, completion} for a teacher. Ctrl-C finishes the
    step, saves, and prints the command that goes on. Settings are in the table [training.OBJECTIVE].

    Example: nightschool train --objective sft --data handbook.jsonl --agent support-shop
    """
    from nightschool.cli import study

    call: Call = ctx.obj
    if resume is not None:
        return study.go_on(call, resume)
    return study.begin(call, study.Wish(objective, data, agent, model, start, teacher))
