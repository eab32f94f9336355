"""`nightschool feedback rates`: how often an agent succeeds, though most people say nothing."""

from __future__ import annotations

import time

import typer

from nightschool.cli.answer import Answer, Call, Table
from nightschool.cli.options import AgentOption
from nightschool.types import Json


def rates(ctx: typer.Context, agent: AgentOption = None) -> Answer:
    """Show the success rate three ways: of those who spoke, reweighed by who is likely to speak, and what it must lie
    between by those who were asked at random (`poll` below [feedback]).

    Example: nightschool feedback rates --agent support-shop
    """
    from nightschool.cli.naming import find_agent
    from nightschool.curation.dataset import Wanted
    from nightschool.curation.rates import success_rates

    call: Call = ctx.obj
    with call.store() as store, store.read() as conn:
        name = find_agent(conn, store.tenant, agent, call.config)
        found = success_rates(conn, store.tenant, Wanted(name, "", time.time()))
    rows = (
        ("those who spoke", _interval(found["spoken"]), "silence says nothing about success"),
        (
            "by who is likely to speak",
            _interval(found["stratified"]),
            "requests tell who stays silent, nothing else does",
        ),
        ("asked at random", _between(found["polled"]), "nothing: all who stayed silent were content, or none"),
    )
    table = Table(rows, ("", "success, %", "takes for granted"), wraps=(1, 2))
    sentence = f"{found['judged']} of {found['replies']} replies and sessions of {name} were judged."
    return Answer("feedback.rates", sentence, found, (table,), f"nightschool audit --agent {name}")


def _interval(found: Json) -> str:
    if "why" in found:
        return f"not known: {found['why']}"
    return f"{100 * found['rate']:.0f} [{100 * found['low']:.0f}, {100 * found['high']:.0f}]"


def _between(found: Json) -> str:
    if "why" in found:
        return f"not known: {found['why']}"
    ends = f"between {100 * found['low']:.0f} and {100 * found['high']:.0f}"
    outer = f"[{100 * found['lowest']:.0f}, {100 * found['highest']:.0f}]"
    return f"{ends} {outer}, {100 * found['answered']:.0f} % of {found['asked']} answered"
