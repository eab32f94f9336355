"""From the store into a file that others read: whole or not at all, and without secrets."""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import sqlalchemy as sa

from nightschool.access.secrets import find_secrets
from nightschool.errors import InputError, MissingError, RefusedError
from nightschool.imports.atif_out import trajectories
from nightschool.imports.paths import Session, each_session
from nightschool.imports.rows import conversations, demonstrations, judged, preferences
from nightschool.store.schema import sessions
from nightschool.types import Json

NUM_LINES = 5  # with secrets, that are told

Rows = Callable[[Session, Counter[str]], Iterator[Json]]

FORMATS: dict[str, Rows] = {
    "messages": conversations,
    "atif": trajectories,
    "sft": demonstrations,
    "preference": preferences,
    "kto": judged,
}


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be written. `unjudged` takes demonstrations without feedback; `secrets` writes them as they are."""

    format: str
    agent: str
    out: Path
    unjudged: bool = False
    secrets: bool = False


@dataclass(slots=True)
class Written:
    """What was written: rows, from how many sessions, what was left out and why, and the kinds of secrets in it."""

    rows: int = 0
    sessions: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    secrets: Counter[str] = field(default_factory=Counter)
    lines: list[int] = field(default_factory=list)

    def as_json(self) -> Json:
        return {
            "rows": self.rows,
            "sessions": self.sessions,
            "left_out": dict((+self.left_out).most_common()),
            "secrets": dict(self.secrets),
        }


def export(conn: sa.Connection, tenant: str, order: Order, say: Callable[[int, int], None]) -> Written:
    """Write the file, one JSON document a line; it is there when it is whole. Read from one snapshot.

    Raises:
        InputError: the format is not known.
        MissingError: the agent has no sessions.
        RefusedError: a line holds what looks like a secret; nothing is left behind.
    """
    if order.format not in FORMATS:
        raise InputError(
            f"There is no format {order.format!r}.", f"Known are {', '.join(FORMATS)}.", "nightschool export --help"
        )
    total = conn.scalar(sa.select(sa.func.count()).where(sessions.c.tenant == tenant)) or 0
    part = order.out.with_name(f".{order.out.name}.part")
    written = Written()
    try:
        with part.open("wb") as target:
            for number, session in enumerate(each_session(conn, tenant, order.agent), start=1):
                written.sessions = number
                _write(target, order, session, written)
                say(number, total)
            target.flush()
            os.fsync(target.fileno())
        _check(order, written)
        part.replace(order.out)
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
    return written


def _write(target: BinaryIO, order: Order, session: Session, written: Written) -> None:
    rows = FORMATS[order.format]
    found = rows(session, written.left_out)
    if order.format == "sft":
        found = demonstrations(session, written.left_out, order.unjudged)
    for row in found:
        written.rows += 1
        line = json_line(row)
        hits = find_secrets(line.decode())
        if hits:
            written.secrets.update(hit.kind for hit in hits)
            written.lines += [written.rows] if len(written.lines) < NUM_LINES else []
        target.write(line)


def json_line(row: Json) -> bytes:
    """One line of UTF-8 with sorted keys; a lone surrogate, which UTF-8 cannot hold, is escaped."""
    try:
        return (json.dumps(row, sort_keys=True, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:
        return (json.dumps(row, sort_keys=True) + "\n").encode()


def _check(order: Order, written: Written) -> None:
    if not written.sessions:
        raise MissingError(f"The agent {order.agent!r} has no sessions.", "Nothing was written.", "nightschool status")
    if written.secrets and not order.secrets:
        kinds = ", ".join(f"{count} {kind}" for kind, count in written.secrets.most_common())
        raise RefusedError(
            "Nothing was written: there are secrets in it.",
            f"{kinds}, first in lines {', '.join(map(str, written.lines))}.",
            "Remove them from what is recorded, or write them all the same with --with-secrets.",
        )
