"""`nightschool gate`: examine a candidate against what serves, and show the verdict."""

from __future__ import annotations

from typing import Annotated

import typer

from nightschool.cli.answer import Answer, Call
from nightschool.cli.options import AgentOption, new_app

app = new_app()
Candidate = Annotated[str, typer.Argument(help="v3, a digest or its first characters, or a run.")]
Exam = Annotated[str, typer.Argument(help="The exam's id, or its last characters.")]
ProbesOption = Annotated[bool, typer.Option("--probes/--no-probes", help="Also ask the shipped probe set.")]


@app.callback()
def gate() -> None:
    """Open an exam, let any harness fill it through the gateway, close it with a verdict.

    `nightschool gate CANDIDATE` shows the newest verdict.

    Example: nightschool gate run 80c2ab --harness "python shop.py"
    """


@app.command(name="open")
def open_command(ctx: typer.Context, candidate: Candidate, agent: AgentOption = None) -> Answer:
    """Open an exam of CANDIDATE against what serves now; its rule is fixed from here on.

    Example: nightschool gate open 80c2ab
    """
    from nightschool.cli import exams

    call: Call = ctx.obj
    with call.store() as store:
        return exams.opened(store, exams.open_sitting(store, call.config, agent, candidate))


@app.command()
def close(ctx: typer.Context, exam: Exam, probes: ProbesOption = True) -> Answer:
    """Close EXAM: ask the probe set, decide, and store the verdict with its statistics.

    Example: nightschool gate close 7f3ac21e
    """
    from nightschool.cli import exams
    from nightschool.cli.verdicts import verdict_answer

    call: Call = ctx.obj
    with call.store() as store:
        return verdict_answer(store, exams.close_sitting(store, call, exam, probes).id)


@app.command()
def run(
    ctx: typer.Context,
    candidate: Candidate,
    harness: Annotated[str, typer.Option("--harness", help="The command that talks to both versions.")],
    agent: AgentOption = None,
    probes: ProbesOption = True,
) -> Answer:
    """Open an exam, run the harness, close it, print the verdict.

    The harness is a command of yours. It finds in its environment NIGHTSCHOOL_URL, NIGHTSCHOOL_TOKEN,
    NIGHTSCHOOL_EXAM (send it as the header X-Nightschool-Exam) and the two model names to ask for,
    NIGHTSCHOOL_CANDIDATE and NIGHTSCHOOL_INCUMBENT.

    Example: nightschool gate run 80c2ab --harness "python shop.py"
    """
    from nightschool.cli import exams
    from nightschool.cli.verdicts import verdict_answer

    call: Call = ctx.obj
    with call.store() as store:
        sitting = exams.open_sitting(store, call.config, agent, candidate)
        exams.run_harness(call, sitting, harness)
        return verdict_answer(store, exams.close_sitting(store, call, sitting.exam_id, probes).id)


@app.command()
def show(ctx: typer.Context, candidate: Candidate, agent: AgentOption = None) -> Answer:
    """Show the newest verdict on CANDIDATE.

    Example: nightschool gate 80c2ab
    """
    from nightschool.cli.naming import find_agent, find_digest
    from nightschool.cli.verdicts import newest_verdict, verdict_answer

    call: Call = ctx.obj
    with call.store() as store:
        with store.read() as conn:
            name = find_agent(conn, store.tenant, agent, call.config)
            found = newest_verdict(conn, store.tenant, name, find_digest(conn, store.tenant, name, candidate))
        return verdict_answer(store, found)
