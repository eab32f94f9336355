"""`nightschool retain`: delete what is older than it may be kept."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from nightschool.cli.answer import Answer, Call, Table
from nightschool.cli.options import new_app, who

if TYPE_CHECKING:
    from nightschool.access.retention import Retained
    from nightschool.store.database import Store

app = new_app()


@app.command()
def retain(
    ctx: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, delete nothing.")] = False,
    trained: Annotated[bool, typer.Option("--trained", help="Also what adapters that serve were trained on.")] = False,
) -> Answer:
    """Delete exchanges older than `keep_days` below [privacy], with feedback, bodies and messages of theirs alone.

    What an adapter that serves was trained on stays, and is counted, unless --trained is given.

    Example: nightschool retain --dry-run
    """
    from nightschool.access.privacy import read_privacy
    from nightschool.access.retention import Wish, cutoff, rehearse, tenants
    from nightschool.access.retention import retain as delete
    from nightschool.errors import ConfigError

    call: Call = ctx.obj
    privacy = read_privacy(call.config.section("privacy"))
    found: list[Retained] = []
    with call.store() as store:
        with store.read() as conn:
            days = {tenant: privacy.days_of(tenant) for tenant in tenants(conn)}
        for tenant, number in days.items():
            if number is None:
                continue
            view = store.scoped(tenant)
            wish = Wish(cutoff(number), frozenset() if trained else _learned(view))
            found.append(rehearse(view, wish) if dry_run else delete(view, wish, who(), call.progress.say))
    if not found:
        raise ConfigError(
            "Nothing was deleted.", "No number of days is set.", "Set keep_days below [privacy] in nightschool.toml."
        )
    return _answer(found, dry_run)


def _learned(store: Store) -> frozenset[str]:
    """The exchanges that adapters which serve were trained on, or those they descend from."""
    from nightschool.curation.lineage import learned_from
    from nightschool.store.schema import aliases

    with store.read() as conn:
        query = aliases.select().where(aliases.c.tenant == store.tenant)
        digests = {row.digest for row in conn.execute(query)}
        return frozenset().union(*(learned_from(conn, store.tenant, digest) for digest in digests))


def _answer(found: list[Retained], dry_run: bool) -> Answer:
    from nightschool.dashboard.formatting import iso

    names = ("exchanges", "feedback", "sessions", "parked", "bodies", "messages", "blobs", "spared")
    shown = names[:1] + names[3:4] + names[-1:] if dry_run else names
    rows = tuple((one.tenant, iso(one.before) or "", *(str(getattr(one, name)) for name in shown)) for one in found)
    number, spared = sum(one.exchanges for one in found), sum(one.spared for one in found)
    sentence = f"{number} exchanges {'would go' if dry_run else 'are deleted'}"
    if spared:
        sentence += f"; {spared} as old stay, since adapters that serve were trained on them"
    hint = "nightschool retain" if dry_run and number else "nightschool retain --trained" if spared else ""
    data = {"dry_run": dry_run, "tenants": [asdict(one) for one in found]}
    table = Table(rows, ("tenant", "before", *shown), right=tuple(range(2, 2 + len(shown))))
    return Answer("retain", f"{sentence}.", data, (table,), hint)
