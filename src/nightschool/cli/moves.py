"""How a move of an alias is told: promote, roll back and start end in the same sentence."""

from __future__ import annotations

from dataclasses import asdict

from nightschool.cli.answer import Answer, Table
from nightschool.releases.aliases import version_name
from nightschool.store.database import Store
from nightschool.types import Release


def moved(store: Store, kind: str, release: Release) -> Answer:
    """`v3 serves support-shop; before it was v2.`"""
    with store.read() as conn:
        before = release.previous_digest
        former = version_name(conn, store.tenant, release.agent, before) if before else None
    was = f"; before it was {former}" if former else ""
    rows = [("digest", release.digest), ("by", release.by)]
    rows += [("reason", release.reason)] if release.reason else []
    rows += [("verdict", release.verdict_id)] if release.verdict_id else []
    back = "Undo: nightschool rollback" if former and kind != "rollback" else "nightschool status"
    sentence = f"v{release.number} serves {release.agent}{was}."
    return Answer(kind, sentence, asdict(release), (Table(tuple(rows), wraps=(1,)),), back)
