"""Verdicts in the store: written once, with everything they rest on."""

from __future__ import annotations

from dataclasses import asdict

import sqlalchemy as sa

from nightschool.store import schema
from nightschool.types import Decision, Json, Reading, Suite, Verdict


def save_verdict(conn: sa.Connection, tenant: str, verdict: Verdict, evidence: Json) -> None:
    """Write a verdict. `evidence` is what its numbers were computed from; it joins the report."""
    report = {"rule": verdict.rule, "suites": [asdict(suite) for suite in verdict.suites], **evidence}
    conn.execute(
        schema.verdicts.insert().values(
            tenant=tenant,
            id=verdict.id,
            agent=verdict.agent,
            exam_id=verdict.exam_id,
            candidate=verdict.candidate,
            incumbent=verdict.incumbent,
            decision=verdict.decision.value,
            sentence=verdict.sentence,
            report=report,
            created_at=verdict.created_at,
        )
    )


def load_verdict(conn: sa.Connection, tenant: str, verdict_id: str) -> Verdict | None:
    """A stored verdict, or `None`."""
    t = schema.verdicts
    row = conn.execute(sa.select(t).where(t.c.tenant == tenant, t.c.id == verdict_id)).mappings().first()
    if row is None:
        return None
    suites = tuple(Suite(**{**raw, "reading": Reading(raw["reading"])}) for raw in row["report"]["suites"])
    return Verdict(
        id=row["id"],
        agent=row["agent"],
        candidate=row["candidate"],
        incumbent=row["incumbent"],
        decision=Decision(row["decision"]),
        sentence=row["sentence"],
        suites=suites,
        rule=row["report"]["rule"],
        created_at=row["created_at"],
        exam_id=row["exam_id"],
    )


def verdict_report(conn: sa.Connection, tenant: str, verdict_id: str) -> Json | None:
    """Everything a verdict rests on: rule, suites, counts, formulas' inputs, looks, best and worst pairs."""
    t = schema.verdicts
    return conn.execute(sa.select(t.c.report).where(t.c.tenant == tenant, t.c.id == verdict_id)).scalar()
