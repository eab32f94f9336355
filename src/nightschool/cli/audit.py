"""`nightschool audit`: what an agent's rewards are worth, before a run learns from them."""

from __future__ import annotations

import typer

from nightschool.cli.answer import Answer, Call, Table
from nightschool.cli.options import AgentOption, new_app
from nightschool.types import Json

app = new_app()
TONES = {"holds": "better", "broken": "worse"}


@app.command()
def audit(ctx: typer.Context, agent: AgentOption = None) -> Answer:
    """Measure the rewards of everything judged: noise against trusted outcomes, sources, length, order, empty answers,
    asking for praise, refusals. `train` asks for an audit of the last seven days.

    Example: nightschool audit --agent support-shop
    """
    from nightschool.cli.naming import find_agent
    from nightschool.cli.settings import overridden
    from nightschool.curation.audit import make_audit
    from nightschool.models.fetch import find_model
    from nightschool.objectives.catalog import find_objective
    from nightschool.rendering.renderer import Renderer
    from nightschool.training.plans import default_config

    call: Call = ctx.obj
    table = call.config.section("training").get("oapl", {})
    rule = overridden(default_config(find_objective("oapl")), table, "training.oapl").curation
    with call.store() as store:
        with store.read() as conn:
            name = find_agent(conn, store.tenant, agent, call.config)
        report = make_audit(store, name, rule, Renderer.from_folder(find_model(call.config.model)))
    return told(report)


def told(report: Json) -> Answer:
    """An audit as an answer; one that found the reward broken has exit code 3."""
    broken = [check["name"] for check in report["checks"] if check["standing"] == "broken"]
    rows = tuple((check["name"], str(check["standing"]), check["sentence"]) for check in report["checks"])
    tones = tuple(TONES.get(row[1], "") for row in rows)
    sentence = f"{report['rows']} rewards of {report['agent']} were audited."
    if broken:
        sentence = f"The rewards of {report['agent']} are broken: {', '.join(broken)}."
    evidence = (Table(rows, ("check", "", "what was seen"), tones, wraps=(2,)), *_learned(report))
    following = "" if broken else f"nightschool train --agent {report['agent']}"
    return Answer("audit", sentence, report, evidence, following, 3 if broken else 0, "Nothing trains on them.")


def _learned(report: Json) -> tuple[str, ...]:
    """What is made of texts, and of who ticks at random."""
    texts, raters = report["text_calibrator"], report["raters"]
    read = (
        f"Texts are read: Brier {texts['brier']:.3f} where always saying the mean gives {texts['brier_of_mean']:.3f}."
        if texts["used"]
        else f"Texts stay unread: {texts['why']}"
    )
    weighed = (
        f"Raters are weighed: {raters['careless']:.0%} of {raters['raters']} seem to tick at random."
        if raters["used"]
        else f"Raters count alike: {raters['why']}"
    )
    return read, weighed
