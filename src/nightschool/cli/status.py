"""`nightschool status`: is it working, is it getting better, what waits for a decision."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

from nightschool.cli.answer import Answer, Call, Table
from nightschool.cli.options import AgentOption, new_app

if TYPE_CHECKING:
    from nightschool.dashboard.pages import Page
    from nightschool.types import Json

app = new_app()

DAY_S = 86_400.0


@app.command()
def status(ctx: typer.Context, agent: AgentOption = None) -> Answer:
    """Say in one sentence whether the agent gets better, then show what that rests on.

    Example: nightschool status --agent support-shop
    """
    from nightschool.curation.kept import kept_share
    from nightschool.dashboard.pages import Page, index_page
    from nightschool.dashboard.queries.material import material
    from nightschool.dashboard.queries.scope import Scope

    call: Call = ctx.obj
    facts = _facts(call)
    with call.store() as store, store.read() as conn:
        scope = Scope(store.tenant, time.time(), {"agent": agent} if agent else {}, facts)
        page = index_page(conn, scope, {})
        good_for = page.data.get("material") or material(conn, scope, page.data.get("agent"))
        named = [page.data["agent"]] if page.data.get("agent") else page.data["agents"]
        kept = {name: kept_share(conn, store.tenant, name, scope.now - DAY_S).as_json() for name in named}
    assert isinstance(page, Page)
    running = {"running": facts["engine"] is not None, "engine": facts["engine"]}
    data = page.data | running | {"good_for": good_for, "kept": kept}
    if page.kind == "agents":
        return Answer("status", page.answer, data, (_agents(data),), "nightschool status --agent NAME")
    sentence = f"{data['agent']}: {page.answer}"
    if data["recording"] is None:
        return Answer("status", sentence, data, (), "nightschool up" if facts["engine"] is None else "")
    good = (_good_for(good_for),) if data["serving"] is None else ()
    return Answer(
        "status", sentence, data, (_facts_table(page, facts, kept[data["agent"]]), *_releases(data), *good), _next(data)
    )


def _facts(call: Call) -> Json:
    """What the running process knows: its engine, and what it could not record."""
    from nightschool.cli.loopback import health
    from nightschool.cli.running import read_running

    running = read_running(call.config.state)
    told = health(running.gateway_url) if running else None
    if told is None:
        return {"agent": call.config.agent, "engine": None, "lost": None}
    return {"agent": call.config.agent, "engine": f"engine {told['engine']}", "lost": told["recording"]["lost"]}


def _facts_table(page: Page, facts: Json, kept: Json) -> Table:
    from nightschool.dashboard.formatting import clock, number, percent, plural, short_id

    data, recording = page.data, page.data["recording"]
    lost = "" if facts["lost"] is None else f", {number(facts['lost'])} lost" if facts["lost"] else ", none lost"
    added = recording["overhead_p50_ms"]
    latency = "" if added is None else f", {number(added, 1, sign=True)} ms p50"
    exchanges = plural(recording["exchanges_day"], "exchange")
    rows = [("as of", clock(time.time()), "")]
    rows += [("recording", f"{exchanges} in 24 h{lost}{latency}", facts["engine"] or "not running: nightschool up")]
    if kept["sampled_tokens"]:
        may = f"{percent(kept['share'])} of {plural(kept['sampled_tokens'], 'sampled token')} in 24 h may train"
        rows.append(("tokens", may, _lost_tokens(kept)))
    serving = data["serving"]
    if serving:
        rows.append(("serving", f"{serving['label']} {short_id(serving['digest'])}", ""))
    else:
        rows.append(("serving", "nothing is released: the base model, or the provider, answers", ""))
    rows += [("last night" if place == 0 else "", told, "") for place, told in enumerate(page.drawn["last_night"])]
    for place, item in enumerate(data["decisions"]):
        rows.append(("decide" if place == 0 else "", *_decision(item)))
    if data["parked"]:
        rows.append(("parked", f"{plural(data['parked'], 'item')} of feedback wait for their exchange", ""))
    return Table(tuple(rows), wraps=(1,))


def _lost_tokens(kept: Json) -> str:
    """What keeps the others, the three largest reasons."""
    from nightschool.dashboard.formatting import percent

    lost = [item for item in kept["lost"] if item["tokens"]][:3]
    return ", ".join(f"{item['reason']} {percent(item['tokens'] / kept['sampled_tokens'])}" for item in lost)


def _decision(item: Json) -> tuple[str, str]:
    if item["kind"] == "promote":
        candidate = item["verdict"]["candidate"]
        return (
            f"{candidate['label']} passed the gate and does not serve yet",
            f"nightschool promote {candidate['digest'][:12]}",
        )
    return f"a run {item['run']['state']}", f"nightschool train --resume {item['run']['id']}"


def _releases(data: Json) -> tuple[Table, ...]:
    """One row a release: share of judged sessions that went well, with its interval. Nothing before the first."""
    from nightschool.cli.drawing import axis, bar
    from nightschool.dashboard.intervals import SHARE

    rows, tones = [], []
    for row in data["releases"]:
        share = row["share"] or {}
        whole = [None if share.get(key) is None else 100 * share[key] for key in ("estimate", "low", "high")]
        drawn = bar(SHARE, (whole[0], whole[1], whole[2]), solid=row["enough"])
        judged = str(row["judged"]) if row["enough"] else f"{row['judged']} of {data['needed_judged']}"
        name = f"{row['version']['label']}{' serving' if row['version']['serving'] else ''}"
        rows.append((name, row["text"] or "missing", drawn, row["since_text"] or "", judged, row["reading"]))
        tones.append(row["reading"] if row["reading"] in ("better", "worse") else "")
    ticks = axis(SHARE, [f"{tick:.0f}" for tick in SHARE.ticks])
    header = ("release", "success %", ticks, "since first", "judged", "reading")
    return (Table(tuple(rows), header, tuple(tones), drawn=(2,), wraps=(5,)),) if rows else ()


def _good_for(material: Json) -> Table:
    """What each objective could learn from, and what it lacks where that is nothing."""
    from nightschool.dashboard.formatting import number

    rows = []
    for line in material["objectives"]:
        against = ", ".join(
            f"{number(reason['number'])} {reason['reason'].replace('_', ' ')}" for reason in line["refused"]
        )
        rows.append((line["title"], f"{number(line['usable'])} of {number(line['of'])}", against or line["lacks"]))
    return Table(tuple(rows), ("good for", "usable", "against the rest"), right=(1,), wraps=(2,))


def _agents(data: Json) -> Table:
    from nightschool.dashboard.formatting import percent

    rows = tuple(
        (
            row["agent"],
            (row["serving"] or {}).get("label", "base"),
            row.get("text") or "missing",
            percent(data["kept"][row["agent"]]["share"]),
        )
        for row in data["rows"]
    )
    return Table(rows, ("agent", "serving", "success, % [95 %]", "tokens that may train, 24 h"))


def _next(data: Json) -> str:
    return _decision(data["decisions"][0])[1] if data["decisions"] else ""
