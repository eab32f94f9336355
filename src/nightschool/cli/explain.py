"""`nightschool explain EXCHANGE`: trained, held back or excluded, and why."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from nightschool.cli.answer import Answer, Call, Table
from nightschool.cli.options import new_app

if TYPE_CHECKING:
    from nightschool.types import Json

app = new_app()


@app.command()
def explain(
    ctx: typer.Context,
    exchange: Annotated[str, typer.Argument(help="Its id, the id in the reply, or an external key.")],
) -> Answer:
    """Tell what became of one exchange: what was said about it, which runs used it or not, and why.

    Example: nightschool explain chatcmpl-7f3a
    """
    from nightschool.dashboard.queries.ledger import today
    from nightschool.store.explain import explain as look

    call: Call = ctx.obj
    with call.store() as store, store.read() as conn:
        found = look(conn, store.tenant, exchange)
    facts = found["exchange"]
    found["today"] = today(facts, found["feedback"])
    sentence = f"{found['summary'][:1].upper()}{found['summary'][1:]}".rstrip(".") + "."
    if not found["ledger"]:
        sentence = f"{sentence} {_standing(found['today'])}"
    evidence = [_facts(found)]
    evidence += [_ledger(found["ledger"])] if found["ledger"] else []
    evidence += [_feedback(found["feedback"])] if found["feedback"] else []
    evidence += [_releases(found["releases"])] if found["releases"] else []
    return Answer("explain", f"Exchange {facts['id']}: {sentence}", found, tuple(evidence))


def _standing(now: Json) -> str:
    """What the next run would do with it, as a sentence."""
    if now["state"] == "open":
        return f"It may train: {now['reason']}."
    return f"Today it would be {'held back' if now['state'] == 'held' else now['state']}: {now['reason']}."


def _facts(found: Json) -> Table:
    from nightschool.dashboard.formatting import clock

    facts, session = found["exchange"], found["session"]
    good = [name for name, against in found["today"]["objectives"].items() if against is None]
    sampled = facts["num_sampled_tokens"]
    rows = (
        ("session", f"{facts['session_id']}, exchange {len(found['branch'])} of its branch"),
        ("agent", f"{facts['agent']}, policy {facts['policy_version'][:12]}"),
        ("at", f"{clock(facts['started_at'])}, {facts['status']}"),
        ("dialect", f"{facts['dialect']}{', streamed' if facts['streamed'] else ''}"),
        ("branch", _branch(found)),
        ("fidelity", f"{facts['fidelity']}{_because(facts['fidelity_reason'])}"),
        ("context", _context(facts)),
        ("tokens", f"{'missing' if sampled is None else f'{sampled} sampled'}{_usage(facts['usage'])}"),
        ("flags", ", ".join(map(str, facts["flags"] or ())) or "none"),
        ("split", f"{facts['split']} ({facts['purpose']})"),
        ("consent", "may be trained on" if facts["training_allowed"] else "may not be trained on"),
        ("good for", ", ".join(good) or "no objective"),
        ("begins", session["preview"]),
    )
    return Table(rows, wraps=(1,))


def _branch(found: Json) -> str:
    facts = found["exchange"]
    again = [f"the same request as {facts['retry_of']}: both count once"] if facts["retry_of"] else []
    again += [f"sent again as {other}: both count once" for other in found["retries"]]
    unseen = [] if facts["context_complete"] else ["what came before it was never seen"]
    return ", ".join((facts["branch"].replace("_", "-"), *again, *unseen))


def _context(facts: Json) -> str:
    """The prompt's tokens, and whether they begin with what the turn before it was given and sampled."""
    size, shared = facts["num_prompt_tokens"], facts["prompt_prefix_len"]
    if size is None:
        return "missing"
    if facts["parent_exchange_id"] is None:
        return f"{size} tokens"
    return f"{size} tokens, {f'{shared} of them' if shared else 'none of them'} as the turn before it left them"


def _because(reason: str | None) -> str:
    return f": {reason}" if reason else ""


def _usage(usage: Json | None) -> str:
    """The upstream's own counts, those that are numbers."""
    counts = [f"{name} {value}" for name, value in (usage or {}).items() if type(value) is int]
    return f"; the upstream counts {', '.join(counts)}" if counts else ""


def _ledger(lines: list[Json]) -> Table:
    rows = []
    for line in lines:
        numbers = (_value(line["reward"]), _value(line["weight"]))
        rows.append((line["run_id"], line["objective"] or "", line["state"], line["reason"], *numbers))
    return Table(tuple(rows), ("run", "objective", "state", "why", "reward", "weight"), right=(4, 5), wraps=(3,))


def _feedback(items: list[Json]) -> Table:
    from nightschool.dashboard.formatting import clock
    from nightschool.dashboard.marks import one_line

    rows = []
    for item in items:
        about = "this exchange" if item["exchange_id"] else "the session"
        if item["tool_call"] is not None:
            about = f"call {item['tool_call'] + 1} of this exchange"
        said = item["value"] if isinstance(item["value"], str) else json.dumps(item["value"], ensure_ascii=False)
        kind = item["kind"] if item["name"] == item["kind"] else f"{item['kind']} {item['name']}"
        rows.append((clock(item["received_at"]), kind, one_line(said), item["source"], about))
    return Table(tuple(rows), ("heard", "kind", "value", "source", "about"), wraps=(2,))


def _releases(found: list[Json]) -> Table:
    rows = tuple(
        (
            f"v{release['number']}{' serving' if release['serving'] else ''}",
            release["digest"][:12],
            "trained on it" if release["trained_here"] else "descends from one that did",
        )
        for release in found
    )
    return Table(rows, ("release", "adapter", "how"))


def _value(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
