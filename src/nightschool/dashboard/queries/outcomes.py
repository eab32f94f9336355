"""How a session ended in the eyes of those who judged it: one definition for every page."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from nightschool.feedback.values import IMPLICIT
from nightschool.store.schema import feedback, sessions

UP, DOWN, SILENT = "up", "down", "silent"


def thumb_scores(tenant: str, session_ids: Sequence[str] | sa.Select | None = None) -> sa.Subquery:
    """(session_id, score, num_thumbs, last_at) of every session with a thumb, or of `session_ids` alone.

    The last thumb of each author counts, unless something supersedes it; those on single tool calls, and those that
    nobody gave on purpose, do not. Ups count one, downs minus one. A session is up when `score` is above
    zero; authors who disagree evenly leave it at zero, which counts as down.
    """
    f = feedback.c
    author = (f.session_id, f.source, f.author)
    rank = sa.func.row_number().over(
        partition_by=author, order_by=(f.observed_at.desc(), f.received_at.desc(), f.id.desc())
    )
    later = feedback.alias("later")
    replaced = sa.exists().where(later.c.tenant == f.tenant, later.c.supersedes == f.id)
    columns = (f.session_id, is_up().label("up"), f.observed_at, rank.label("rank"), replaced.label("replaced"))
    rows = sa.select(*columns).where(
        f.tenant == tenant,
        f.kind == "thumb",
        f.source != IMPLICIT,
        f.state == "matched",
        f.session_id.is_not(None),
        f.target_kind != "tool_call",
    )
    if session_ids is not None:
        rows = rows.where(f.session_id.in_(session_ids))
    last = rows.subquery("last_thumbs")
    return (
        sa.select(
            last.c.session_id,
            sa.func.sum(sa.case((last.c.up, 1), else_=-1)).label("score"),
            sa.func.count().label("num_thumbs"),
            sa.func.max(last.c.observed_at).label("last_at"),
        )
        .where(last.c.rank == 1, ~last.c.replaced)
        .group_by(last.c.session_id)
        .subquery("thumb_scores")
    )


def has_thumb(tenant: str) -> sa.Exists:
    """Whether the session of the enclosing query was judged by anybody."""
    f, s = feedback.c, sessions.c
    said = (f.kind == "thumb", f.source != IMPLICIT, f.state == "matched")
    return sa.exists().where(f.tenant == tenant, f.session_id == s.id, *said)


def is_up() -> sa.ColumnElement[bool]:
    """Whether a feedback row of kind thumb points up."""
    return sa.cast(feedback.c.value, sa.String).in_(("true", '"up"', "1"))


def outcome_of(score: int | None) -> str:
    if score is None:
        return SILENT
    return UP if score > 0 else DOWN
