"""A poisoned copy of the shop's store: the same customers and words, every thumb turned over."""

from __future__ import annotations

import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import sqlalchemy as sa

from nightschool.feedback.body import NewFeedback
from nightschool.feedback.record import insert_feedback
from nightschool.store.database import Store
from nightschool.store.schema import feedback
from nightschool.types import FeedbackKind, TargetKind


def poisoned_copy(store_path: Path, adapters: Path, folder: Path) -> Path:
    """Copy the store and its adapters into the state folder `folder` and turn every thumb over there.

    The copy is what an attacker would leave who can overwrite thumbs: each one is superseded by its opposite,
    in the same person's name. Texts, rows and everything else stay. Returns `folder`.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with closing(sqlite3.connect(store_path)) as source, closing(sqlite3.connect(folder / "store.sqlite")) as target:
        source.backup(target)
    shutil.copytree(adapters, folder / "adapters")
    with Store.open(folder / "store.sqlite") as store:
        with store.read() as conn:
            thumbs = sa.select(feedback).where(
                feedback.c.tenant == store.tenant, feedback.c.kind == FeedbackKind.THUMB.value
            )
            rows = conn.execute(thumbs).all()
        store.write(lambda conn: [_turn_over(conn, store.tenant, row) for row in rows])
    return folder


def _turn_over(conn: sa.Connection, tenant: str, row: sa.Row) -> None:
    item = NewFeedback(
        target_kind=TargetKind(row.target_kind),
        target_id=row.target_id,
        kind=FeedbackKind.THUMB,
        value=not row.value,
        name=row.name,
        source=row.source,
        author=row.author,
        confidence=row.confidence,
        observed_at=time.time(),
        key=f"poison {row.id}",
    )
    insert_feedback(conn, tenant, item, admin=False, now=time.time())
