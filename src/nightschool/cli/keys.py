"""`nightschool keys`: who may reach the gateway, and with which rights."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from nightschool.access.keys import Key, NewKey, Role, Training, add_key, key_secret, list_keys, revoke_key
from nightschool.cli.answer import Answer, Call, Table
from nightschool.cli.options import new_app, who

app = new_app()


@app.callback()
def keys() -> None:
    """Make, list and revoke keys. A key belongs to one tenant (--tenant) and has one role.

    Example: nightschool keys add support-bot --rate 600
    """


@app.command()
def add(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Who will use it.")],
    role: Annotated[
        Role, typer.Option(help="data: traffic and feedback; feedback: judges alone; admin: all.")
    ] = Role.DATA,
    training: Annotated[Training, typer.Option(help="Whether its exchanges may train.")] = Training.DEFAULT,
    rate: Annotated[int | None, typer.Option(help="Requests per minute; without it no limit.")] = None,
) -> Answer:
    """Make a key and show it, once: the store keeps its hash alone.

    Example: nightschool keys add web-site --role feedback
    """
    call: Call = ctx.obj
    with call.store(create=True) as store:
        secret = key_secret(call.config.state)
        key, text = add_key(store, secret, NewKey(name, role, training, rate), who())
    rows = (("key", text, "shown this once"), *((label, value, "") for label, value in _facts(key)))
    sentence = f"{name} has a {role} key for tenant {key.tenant}."
    return Answer("keys.add", sentence, {**asdict(key), "secret": text}, (Table(rows, wraps=(1,)),), "nightschool keys")


@app.command(name="list")
def list_all(ctx: typer.Context) -> Answer:
    """The tenant's keys, revoked ones too.

    Example: nightschool keys
    """
    call: Call = ctx.obj
    with call.store() as store, store.read() as conn:
        known = list_keys(conn, store.tenant)
    active = [key for key in known if key.revoked_at is None]
    rows = tuple((key.name, *(value for _, value in _facts(key))) for key in known)
    header = ("name", *(label for label, _ in _facts(known[0]))) if known else ()
    sentence = f"{len(active)} of {len(known)} keys of tenant {call.config.tenant} are active." if known else "No keys."
    hint = "" if known else "nightschool keys add NAME"
    return Answer(
        "keys", sentence, {"keys": [asdict(key) for key in known]}, (Table(rows, header),) if rows else (), hint
    )


@app.command()
def revoke(ctx: typer.Context, key: Annotated[str, typer.Argument(help="The key's id, or its name.")]) -> Answer:
    """Refuse a key from now on. A running gateway notices within a second.

    Example: nightschool keys revoke support-bot
    """
    call: Call = ctx.obj
    with call.store() as store:
        revoked = revoke_key(store, key, who())
    return Answer("keys.revoke", f"The key of {revoked.name} is revoked.", asdict(revoked), (), "nightschool keys")


def _facts(key: Key) -> tuple[tuple[str, str], ...]:
    from nightschool.dashboard.formatting import iso

    rate = "no limit" if key.rate_per_minute is None else f"{key.rate_per_minute}/min"
    state = "active" if key.revoked_at is None else f"revoked {iso(key.revoked_at)}"
    return (("id", key.id), ("role", key.role), ("training", key.training), ("rate", rate), ("state", state))
