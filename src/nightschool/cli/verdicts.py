"""How a verdict is told: its sentence, one interval per suite, and what this gate could see."""

from __future__ import annotations

import time
from collections.abc import Sequence

import sqlalchemy as sa

from nightschool.cli.answer import Answer, Table
from nightschool.cli.drawing import GLYPHS, axis, bar
from nightschool.cli.naming import SHOWN
from nightschool.dashboard.formatting import number
from nightschool.dashboard.intervals import difference_scale, tick_labels
from nightschool.dashboard.queries.scope import Scope
from nightschool.dashboard.queries.verdicts import verdict as read_verdict
from nightschool.dashboard.suites import WIDEST, losses, suite_groups
from nightschool.errors import MissingError
from nightschool.store.database import Store
from nightschool.store.schema import exams, verdicts
from nightschool.types import Decision, Json

EXIT_CODES = {Decision.PROMOTE: 0, Decision.REFUSE: 3, Decision.NEED_DATA: 4}


def newest_verdict(conn: sa.Connection, tenant: str, agent: str, digest: str) -> str:
    """The id of the newest verdict on a candidate. Raises: MissingError, with what would make one."""
    v, x = verdicts.c, exams.c
    query = sa.select(v.id).where(v.tenant == tenant, v.agent == agent, v.candidate == digest)
    found = conn.scalar(query.order_by(v.created_at.desc(), v.id.desc()).limit(1))
    if found is not None:
        return found
    waits = sa.select(x.id).where(x.tenant == tenant, x.agent == agent, x.candidate == digest, x.state == "open")
    exam = conn.scalar(waits.order_by(x.opened_at.desc()).limit(1))
    raise MissingError(
        f"There is no verdict on {digest[:SHOWN]}.",
        f"Exam {exam} is still open." if exam else "It was never examined.",
        f"nightschool gate close {exam}" if exam else f"nightschool gate run {digest[:SHOWN]} --harness COMMAND",
    )


def verdict_answer(store: Store, verdict_id: str) -> Answer:
    """The stored verdict as an answer; its exit code is the decision's."""
    with store.read() as conn:
        data = read_verdict(conn, Scope(store.tenant, time.time(), {}), verdict_id)
    if data is None:
        raise MissingError(f"There is no verdict {verdict_id}.", "The store lost it.", "nightschool doctor")
    decision = Decision(data["decision"])
    report = data["report"]
    tables = tuple(_table(group, report.get("inputs", {})) for group in suite_groups(report["suites"]))
    logs = (report.get("logs") or {}).get("sentence", "")
    statement = report["rule"].get("statement", "")
    study = report.get("study") or {}
    seen = tuple(study[name]["sentence"] for name in ("teacher_audit", "watch") if name in study)
    told = tuple(line for line in (*seen, logs, statement) if line)
    return Answer(
        "verdict",
        data["sentence"],
        data,
        (*tables, *told),
        _next(decision, data),
        EXIT_CODES[decision],
        statement,
    )


def _table(group: Json, inputs: Json) -> Table:
    """The suites of one unit on one axis."""
    rows, tones = [], []
    edges = [losses(row) for row in group["rows"]]
    reach: list[tuple[float | None, float | None, float | None]] = [
        (row["low"], row["high"], edge) for row, own in zip(group["rows"], edges, strict=True) for edge, _ in own
    ]
    scale = difference_scale(reach, WIDEST.get(group["unit"]))
    for row, own in zip(group["rows"], edges, strict=True):
        known = row["numbers"] is not None
        drawn = bar(scale, (row["difference"], row["low"], row["high"]), own) if known else ""
        numbers = row["numbers"] or f"{number(row['num_pairs'])} of {number(row['needed'])}"
        rows.append((GLYPHS[row["icon"]], row["name"], numbers, drawn, row["margin_text"], str(row["reading"])))
        tones.append(row["tone"] if row["tone"] in ("better", "worse") else "")
    header = ("", "", f"{group['unit']} {_level(group['rows'], inputs)}".strip())
    return Table(
        tuple(rows),
        (*header, axis(scale, tick_labels(scale)), "margin", "reading"),
        tuple(tones),
        drawn=(3,),
        right=(4,),
    )


def _level(rows: Sequence[Json], inputs: Json) -> str:
    """`[90 %]`: both one-sided errors together, where the suites of a unit share one level."""
    given = [inputs.get(row["name"], {}).get("alpha_one_sided") for row in rows]
    levels = {2 * alpha for alpha in given if alpha is not None}
    return f"[{100 * (1 - levels.pop()):.3g} %]" if len(levels) == 1 else "[interval]"


def _next(decision: Decision, data: Json) -> str:
    candidate = data["candidate"]
    if decision is Decision.PROMOTE:
        return "" if candidate["serving"] else f"nightschool promote {candidate['digest'][:SHOWN]}"
    if decision is Decision.NEED_DATA:
        return f"nightschool gate close {data['exam_id']}" if data["exam_id"] else ""
    return "Refused candidates stay on disk; what serves was not touched: nightschool status"
