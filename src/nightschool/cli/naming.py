"""From what a person types to the agent and the digest that are meant."""

from __future__ import annotations

import re

import sqlalchemy as sa

from nightschool.config import Config
from nightschool.dashboard.queries.scope import agents
from nightschool.errors import InputError, MissingError
from nightschool.releases.aliases import BASE, history
from nightschool.store.schema import adapters, exams, runs

NUMBER = re.compile(r"v[1-9][0-9]*")
PREFIX = re.compile(r"[0-9a-f]{4,64}")
SHOWN = 12


def find_agent(conn: sa.Connection, tenant: str, asked: str | None, config: Config) -> str:
    """The agent asked for, else the only one known, else the configured one.

    Raises: InputError when several are known and none was named.
    """
    known = agents(conn, tenant)
    if asked:
        return asked
    if len(known) > 1 and config.agent not in known:
        raise InputError(
            "Several agents are known here.", f"They are {', '.join(known)}.", "Name one with --agent NAME."
        )
    return known[0] if len(known) == 1 else config.agent


def find_digest(conn: sa.Connection, tenant: str, agent: str, text: str) -> str:
    """The digest behind `v3`, `base`, a digest or the first characters of one, or the run that made it.

    Raises:
        MissingError: nothing is called that.
        InputError: several are.
    """
    if text == BASE:
        return BASE
    if NUMBER.fullmatch(text):
        number = int(text[1:])
        found = {release.digest for release in history(conn, tenant, agent) if release.number == number}
    else:
        a, r = adapters.c, runs.c
        made = sa.select(r.adapter_digest).where(
            r.tenant == tenant, sa.or_(r.id == text, sa.func.substr(r.id, -8) == text), r.adapter_digest.is_not(None)
        )
        query = sa.select(a.digest).where(a.tenant == tenant)
        prefix = a.digest.startswith(text, autoescape=True) if PREFIX.fullmatch(text) else sa.false()
        found = set(conn.scalars(query.where(sa.or_(prefix, a.digest.in_(made)))))
    if not found:
        raise MissingError(
            f"No adapter is called {text!r}.",
            "It is no release of this agent, no digest and no run that made one.",
            "nightschool status lists them.",
        )
    if len(found) > 1:
        raise InputError(f"{text!r} means several adapters.", f"{', '.join(sorted(found))}.", "Type more of it.")
    return found.pop()


def find_exam_id(conn: sa.Connection, tenant: str, text: str) -> str:
    """The exam with this id or its last characters. Raises: MissingError, InputError."""
    x = exams.c
    query = sa.select(x.id).where(x.tenant == tenant, sa.func.substr(x.id, -len(text)) == text)
    found = list(conn.scalars(query)) if len(text) >= 4 else []
    if not found:
        raise MissingError(f"There is no exam {text!r}.", "None was opened under that id.", "nightschool status")
    if len(found) > 1:
        raise InputError(f"{text!r} means several exams.", f"{', '.join(found)}.", "Type more of it.")
    return found[0]
