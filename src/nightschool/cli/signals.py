"""`nightschool feedback signals`: what nobody said on purpose, and what it means for an agent."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from nightschool.cli.answer import Answer, Call, Table
from nightschool.cli.options import AgentOption

if TYPE_CHECKING:
    from nightschool.types import Json


def signals(
    ctx: typer.Context,
    agent: AgentOption = None,
    sessions: Annotated[int, typer.Option("--sessions", min=1, max=20_000, help="The newest that are read.")] = 2000,
) -> Answer:
    """Show what sessions say without anybody judging them, and what that has turned out to mean for this agent.

    Example: nightschool feedback signals --agent support-shop
    """
    from nightschool.cli.naming import find_agent
    from nightschool.feedback.implicit.report import learn
    from nightschool.feedback.reward import RewardRule

    call: Call = ctx.obj
    with call.store() as store, store.read() as conn, call.progress.phase("Reading sessions", "Read the sessions"):
        name = find_agent(conn, store.tenant, agent, call.config)
        found = learn(conn, store.tenant, name, time.time(), RewardRule(), sessions).report
    data = {"agent": name, **found}
    there = [one for one in found["signals"] if one["there"]]
    sentence = f"{len(there)} of {len(found['signals'])} signals occur in {found['sessions']} sessions of {name}"
    sentence += f", {found['labelled']} of which were judged. {_standing(found)}"
    return Answer("feedback.signals", sentence, data, (_signals(there),), "nightschool feedback list")


def _standing(found: Json) -> str:
    """What the signals are good for together, as a sentence."""
    if found["model"] is None:
        return f"They are shown, not trained: {found['why']}"
    together = f"Together they tell a failure with AUC {_estimate(found['model']['auc'])}"
    if found["trains"]:
        return f"{together}; they may train, where a run's table `curation` says `signals = true`."
    return f"{together}; they may not train. {found['why']}"


def _signals(there: list[Json]) -> Table:
    rows = tuple(
        (
            one["name"],
            str(one["there"]),
            _estimate(one["fails_with"]),
            _estimate(one["fails_without"]),
            _estimate(one["auc"]),
            one["says"] or "",
            _estimate(one["weight"], "+.2f"),
        )
        for one in there
    )
    header = ("signal", "sessions", "fails with", "fails without", "AUC for failure", "means", "weight")
    return Table(rows, header, right=(1,), wraps=(0,))


def _estimate(found: Json | None, form: str = ".2f") -> str:
    if found is None:
        return ""
    return f"{found['value']:{form}} [{found['low']:{form}}, {found['high']:{form}}]"
