"""`nightschool feedback`: what was heard, what waits, what texts and signals mean; files of it taken in and written."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nightschool.cli.answer import Answer, Call, Table
from nightschool.cli.options import AgentOption, new_app
from nightschool.cli.rates import rates
from nightschool.cli.readings import read
from nightschool.cli.signals import signals

if TYPE_CHECKING:
    from nightschool.types import Json

LISTED = 50

app = new_app()
app.command()(read)
app.command()(rates)
app.command()(signals)


@app.callback()
def feedback() -> None:
    """Look at feedback, and take in files of it.

    Example: nightschool feedback show ticket-4711
    """


@app.command(name="list")
def list_newest(
    ctx: typer.Context,
    state: Annotated[str | None, typer.Option("--only", help="matched, parked, expired or refused.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000)] = LISTED,
) -> Answer:
    """Show the newest feedback.

    Example: nightschool feedback list --limit 10
    """
    from nightschool.feedback.lookup import list_feedback, shown

    call: Call = ctx.obj
    now = time.time()
    with call.store() as store, store.read() as conn:
        items = shown(list_feedback(conn, store.tenant, state, now, limit), now)
    sentence = f"{len(items)} items of feedback{f' that are {state}' if state else ''}, the newest last."
    return Answer("feedback.list", sentence, {"feedback": items}, (_table(items),), "nightschool feedback parked")


@app.command()
def show(
    ctx: typer.Context,
    target: Annotated[str, typer.Argument(help="An exchange, a session or an external key.")],
) -> Answer:
    """Show what was ever said about one target, and what of it holds.

    Example: nightschool feedback show ticket-4711
    """
    from nightschool.errors import MissingError
    from nightschool.feedback.lookup import find_history, shown

    call: Call = ctx.obj
    with call.store() as store, store.read() as conn:
        items = shown(find_history(conn, store.tenant, target), time.time())
    if not items:
        raise MissingError(f"Nothing was said about {target}.", "No feedback names it.", "nightschool feedback list")
    current = [item for item in items if item["current"]]
    sentence = f"{len(items)} items about {target}, {len(current)} of them hold."
    return Answer("feedback.show", sentence, {"feedback": items, "current": current}, (_table(items),))


@app.command()
def parked(ctx: typer.Context) -> Answer:
    """Show the feedback that waits for its target, and until when.

    Example: nightschool feedback parked
    """
    from nightschool.dashboard.formatting import clock
    from nightschool.feedback.lookup import list_feedback, shown

    call: Call = ctx.obj
    now = time.time()
    with call.store() as store, store.read() as conn:
        waiting = shown(list_feedback(conn, store.tenant, "parked", now), now)
        expired = shown(list_feedback(conn, store.tenant, "expired", now), now)
    rows = tuple(
        (item["target_kind"], item["target_id"], item["kind"], clock(item["received_at"]), _until(item))
        for item in (*expired, *waiting)
    )
    table = Table(rows, ("target", "name", "kind", "heard", "waits until"), wraps=(1,))
    sentence = f"{len(waiting)} items of feedback wait for their target; {len(expired)} have expired."
    return Answer("feedback.parked", sentence, {"parked": waiting, "expired": expired}, (table,))


@app.command(name="import")
def import_file(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(help="CSV or Parquet: key_type,key,name,kind,value,time,author.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell what would happen; store nothing.")] = False,
) -> Answer:
    """Take in a file of feedback. Running it again adds nothing.

    Example: nightschool feedback import tickets.csv --dry-run
    """
    from nightschool.access.keys import key_secret
    from nightschool.access.privacy import read_privacy
    from nightschool.feedback.importing import OUTCOMES, import_table

    call: Call = ctx.obj
    with call.store(create=True) as store, call.progress.phase(f"Reading {file.name}", f"Read {file.name}"):
        privacy = read_privacy(call.config.section("privacy"), key_secret(call.config.state))

        def say(rows: int) -> None:
            call.progress.say(f"{rows} rows")

        report = import_table(store, file.expanduser(), time.time(), dry_run, say, privacy)
    data = report.as_json() | {"dry_run": dry_run, "file": str(file)}
    counts = ", ".join(f"{data[outcome]} {outcome}" for outcome in OUTCOMES)
    sentence = f"{data['rows']} rows{' would be' if dry_run else ''}: {counts}."
    again = f"nightschool feedback import {file}" if dry_run else "nightschool feedback parked"
    return Answer("feedback.import", sentence, data, _report(data), again)


@app.command(name="export")
def export_file(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(help="The CSV file; it is replaced when the new one is whole.")],
    state: Annotated[str, typer.Option("--only", help="unread, done, parked, or a kind: text, up, down, …")] = "all",
    agent: AgentOption = None,
) -> Answer:
    """Write feedback and what became of it as CSV, which `feedback import` takes in again.

    Example: nightschool feedback export inbox.csv --only unread
    """
    from nightschool.dashboard.formatting import plural
    from nightschool.dashboard.queries.feedback import CSV_ROWS, STATES, feedback_csv
    from nightschool.dashboard.queries.scope import Scope
    from nightschool.errors import InputError

    if state not in STATES:
        raise InputError("Nothing was written.", f"--only is one of {', '.join(STATES)}.", "nightschool feedback list")
    call: Call = ctx.obj
    with call.store() as store, store.read() as conn:
        asked = {"state": state} | ({"agent": agent} if agent else {})
        written, rows = feedback_csv(conn, Scope(store.tenant, time.time(), asked))
    out = file.expanduser()
    part = out.with_name(f".{out.name}.part")
    part.write_bytes(written)
    part.replace(out)
    more = f" There may be more: the newest {CSV_ROWS} are written." if rows == CSV_ROWS else ""
    sentence = f"Wrote {plural(rows, 'item')} to {file}.{more}"
    data = {"rows": rows, "file": str(file), "only": state, "agent": agent}
    return Answer("feedback.export", sentence, data, (), f"nightschool feedback import {file} --dry-run")


def _report(data: Json) -> tuple[Table | str, ...]:
    from nightschool.dashboard.formatting import clock

    facts = [("why", f"{count} x {reason}") for reason, count in data["reasons"].items()]
    facts += [("line", f"{one['line']}: {one['outcome']}, {one['why']}") for one in data["examples"]]
    times = data["times"]
    for unit, count in times["units"].items():
        facts.append(("time", f"{count} in {unit}"))
    if times["first_at"] is not None:
        facts.append(("time", f"from {clock(times['first_at'])} to {clock(times['last_at'])}"))
    for state in ("absent", "empty"):
        facts += [(state, f"{name} in {count} rows") for name, count in data[state].items()]
    if data["ignored_columns"]:
        facts.append(("columns", f"not looked at: {', '.join(data['ignored_columns'])}"))
    return (Table(tuple(facts), wraps=(1,)),) if facts else ()


def _table(items: list[Json]) -> Table:
    from nightschool.dashboard.formatting import clock
    from nightschool.dashboard.marks import one_line

    rows = []
    for item in items:
        said = item["value"] if isinstance(item["value"], str) else json.dumps(item["value"], ensure_ascii=False)
        place = item["target_id"]
        if item["turn"] is not None:
            place += f" turn {'last' if item['turn'] < 0 else item['turn']}"
        if item["tool_call"] is not None or item["tool_call_id"] is not None:
            place += f" call {item['tool_call_id'] if item['tool_call'] is None else item['tool_call']}"
        holds = "holds" if item["current"] else item["state"] if item["state"] != "matched" else "superseded"
        rows.append((clock(item["observed_at"]), place, item["name"], one_line(said), item["source"], holds))
    return Table(tuple(rows), ("observed", "target", "name", "value", "source", "state"), wraps=(1, 3))


def _until(item: Json) -> str:
    from nightschool.dashboard.formatting import clock

    if item["state"] == "expired":
        return "expired"
    return "" if item["expires_at"] is None else clock(item["expires_at"])
