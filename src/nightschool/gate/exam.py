"""Exams: opened with a rule, filled by any harness through the gateway, closed with a verdict."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import sqlalchemy as sa

from nightschool.errors import InputError, MissingError, RefusedError
from nightschool.gate import decision, spending
from nightschool.gate.evidence import Evidence, gather
from nightschool.gate.logs import read_logs, what_logs_say
from nightschool.gate.reading import FALLS
from nightschool.gate.rule import SUCCESS, ExamRule, SuiteRule, default_rule, rule_as_json, rule_from_json
from nightschool.gate.study import study_of, warning
from nightschool.gate.suites import Pairs, judge, least_pairs
from nightschool.gate.verdicts import load_verdict, save_verdict
from nightschool.releases import aliases
from nightschool.store import schema
from nightschool.store.database import Store
from nightschool.store.ids import new_id
from nightschool.types import Decision, Json, Reading, Verdict


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an exam is. `missing` counts sessions that could not be scored, by reason."""

    paired: int
    planned: int
    least: int
    missing: dict[str, int]


@dataclass(frozen=True, slots=True)
class Standing:
    """The one-sided error that the closing intervals are drawn with, and the looks that led to it."""

    alpha: float
    looks: tuple[Json, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """An open exam as it is read for closing. `looks` are those already taken."""

    rule: ExamRule
    looks: tuple[Json, ...]
    as_of: float
    evidence: Evidence
    names: decision.Names
    facts: Json


def open_exam(store: Store, agent: str, candidate: str, rule: ExamRule | None = None) -> str:
    """Write the exam with its rule, against whatever serves `agent` now; returns the exam's id.

    Raises:
        MissingError: the agent serves nothing, or the candidate is not installed.
        RefusedError: the candidate already serves.
    """
    stated = rule_as_json(rule or default_rule())
    if all(suite["name"] != SUCCESS for suite in stated["suites"]):
        raise InputError("The exam was not opened.", f"Its rule has no suite {SUCCESS!r}.", "nightschool gate --help")

    def write(conn: sa.Connection) -> str:
        incumbent = aliases.current(conn, store.tenant, agent)
        if incumbent is None:
            raise MissingError(
                f"{agent} serves nothing yet.", "An exam compares with what serves.", "nightschool status"
            )
        if incumbent == candidate:
            raise RefusedError(
                "The exam was not opened.", f"{candidate[:12]} already serves {agent}.", "nightschool status"
            )
        t = schema.adapters
        known = sa.select(t.c.digest).where(t.c.tenant == store.tenant, t.c.digest == candidate)
        if candidate != aliases.BASE and conn.execute(known).first() is None:
            raise MissingError(
                f"Adapter {candidate[:12]} is not installed.", "The store knows no such adapter.", "nightschool status"
            )
        exam_id = new_id()
        row = {"tenant": store.tenant, "id": exam_id, "agent": agent, "candidate": candidate, "incumbent": incumbent}
        now = {"rule": {**stated, "looks_taken": []}, "state": "open", "opened_at": time.time()}
        conn.execute(schema.exams.insert().values(**row, **now))
        return exam_id

    return store.write(write)


def exam_progress(store: Store, exam_id: str) -> Progress:
    """How many customers would be paired if the exam were closed now; shows nothing of how they went."""
    with store.read() as conn:
        exam = find_exam(conn, store.tenant, exam_id)
        evidence = gather(conn, store.tenant, exam, time.time())
    rule = rule_from_json(exam["rule"])
    return Progress(evidence.num_pairs, rule.customers, rule.least_pairs, evidence.missing())


def look(store: Store, exam_id: str) -> Literal["continue", "decide"]:
    """Whether the exam may be closed now.

    Only at the planned counts does it look at the difference at all, and each look is recorded, so that the
    error it spends is counted. It says "decide" when the planned customers are there, when the candidate is
    better and none of the exam's own margins is open, or when it is worse. Edge: between planned counts it says
    "continue" however good the candidate is.
    """
    now = time.time()
    with store.read() as conn:
        exam = find_exam(conn, store.tenant, exam_id)
        evidence = gather(conn, store.tenant, exam, now, running=True)
    rule, taken = rule_from_json(exam["rule"]), exam["rule"]["looks_taken"]
    num_pairs = evidence.num_pairs
    if exam["state"] == "closed" or num_pairs >= rule.customers or (taken and taken[-1]["action"] == "decide"):
        return "decide"
    due = [count for count in rule.look_counts() if count > (taken[-1]["pairs"] if taken else 0)]
    if num_pairs < due[0]:
        return "continue"
    record = _interim(rule, evidence, [entry["pairs"] for entry in taken], now)
    return store.write(lambda conn: _record_look(conn, store.tenant, exam_id, len(taken), record))


def close_exam(store: Store, exam_id: str, extra_suites: Sequence[Pairs] = ()) -> Verdict:
    """Decide from what the store holds, and store the verdict with its statistics.

    `extra_suites` are the paired values of suites that the rule expects from elsewhere (the probes); one that
    does not come counts as not enough data. With too few paired customers the verdict says how many would do
    and the exam stays open. Edge: a closed exam returns its verdict again.

    Raises:
        MissingError: no such exam.
        InputError: an extra suite that the rule did not state.
    """
    with store.read() as conn:
        exam = find_exam(conn, store.tenant, exam_id)
        if exam["verdict_id"] is not None:
            return _stored(conn, store.tenant, exam["verdict_id"])
        case = _read_case(conn, store.tenant, exam)
    extra = _named_extras(case.rule, extra_suites)
    standing = _standing(case)
    facts = {**case.facts, "counts": case.evidence.counts()}
    lacking = _lacking(case, extra, standing)
    if lacking is not None or standing is None:  # nothing is compared: asking for more data costs no error
        verdict = _verdict(exam, Decision.NEED_DATA, lacking or "", ())
        return store.write(lambda conn: _keep(conn, store.tenant, verdict, facts))
    # Suites from outside are compared once, here: looks spend nothing of their error.
    alphas = {"exam": standing.alpha, "extra": case.rule.alpha}
    rows = [judge(case.rule, s, _pairs(case, s, extra), alphas[s.source]) for s in case.rule.suites]
    suites = tuple(row.suite for row in rows)
    outcome, said = decision.decide(case.rule, suites, case.names)
    verdict = _verdict(exam, outcome, said + warning(facts["study"]), suites)
    facts["inputs"] = {row.suite.name: row.inputs for row in rows}
    facts |= {"looks": list(standing.looks), "pairs": case.evidence.extremes()}
    return store.write(lambda conn: _keep(conn, store.tenant, verdict, facts))


def find_exam(conn: sa.Connection, tenant: str, exam_id: str) -> sa.RowMapping:
    """The exam's row. Raises: MissingError."""
    t = schema.exams
    row = conn.execute(sa.select(t).where(t.c.tenant == tenant, t.c.id == exam_id)).mappings().first()
    if row is None:
        raise MissingError(f"There is no exam {exam_id}.", "It was never opened in this store.", "nightschool gate")
    return row


def _interim(rule: ExamRule, evidence: Evidence, before: list[int], now: float) -> Json:
    """One recorded look at the difference, with the threshold it is due."""
    num_pairs = evidence.num_pairs
    critical = spending.boundaries([*before, num_pairs], rule.customers, rule.alpha)[-1]
    alpha = spending.nominal(critical)
    rows = [judge(rule, suite, evidence.pairs(suite.name), alpha) for suite in rule.suites if suite.source == "exam"]
    better = all(not decision.blocks(row.suite, rule.suite(row.suite.name)) for row in rows)
    success = next(row.suite for row in rows if row.suite.name == SUCCESS)
    worse = success.reading in FALLS or (success.reading is Reading.WITHIN)
    return {
        "pairs": num_pairs,
        "critical_z": critical,
        "alpha_one_sided": alpha,
        "difference": success.difference,
        "low": success.low,
        "high": success.high,
        "at": now,
        "action": "decide" if better or worse else "continue",
    }


def _read_case(conn: sa.Connection, tenant: str, exam: sa.RowMapping) -> Case:
    """Evidence as of now, or as of the look that ended the exam."""
    looks = tuple(exam["rule"]["looks_taken"])
    ended = bool(looks) and looks[-1]["action"] == "decide"
    as_of = looks[-1]["at"] if ended else time.time()
    pair = (exam["candidate"], exam["incumbent"])
    names = decision.Names(*(aliases.version_name(conn, tenant, exam["agent"], digest) for digest in pair))
    facts = {
        "logs": what_logs_say(read_logs(conn, tenant, *pair)),
        "as_of": as_of,
        "opened_at": exam["opened_at"],
        "earlier_exams_of_this_pair": _earlier_exams(conn, tenant, exam),
        "study": study_of(conn, tenant, exam["candidate"]),
    }
    evidence = gather(conn, tenant, exam, as_of, running=ended)
    return Case(rule_from_json(exam["rule"]), looks, as_of, evidence, names, facts)


def _standing(case: Case) -> Standing | None:
    """The threshold of the closing analysis, or `None` if the exam may not close yet.

    An exam that a look ended is judged as of that look, at its threshold. Otherwise all the error that is left is
    spent now; a look at the very same customers is the same look.
    """
    num_pairs, looks = case.evidence.num_pairs, case.looks
    if looks and looks[-1]["action"] == "decide":
        return Standing(looks[-1]["alpha_one_sided"], looks)
    if num_pairs < case.rule.least_pairs:
        return None
    counts = [entry["pairs"] for entry in looks if entry["pairs"] < num_pairs] + [num_pairs]
    critical = spending.boundaries(counts, case.rule.customers, case.rule.alpha, final=True)[-1]
    alpha = spending.nominal(critical)
    last = {"pairs": num_pairs, "critical_z": critical, "alpha_one_sided": alpha, "at": case.as_of, "action": "close"}
    return Standing(alpha, (*looks, last))


def _lacking(case: Case, extra: dict[str, Pairs], standing: Standing | None) -> str | None:
    """What the exam still needs before it may be judged, in the verdict's words."""
    if standing is None:
        missing = case.evidence.missing()
        return decision.need_pairs(case.evidence.num_pairs, case.rule.least_pairs, missing, case.names)
    for suite in case.rule.suites:
        found, needed = len(_pairs(case, suite, extra).values), least_pairs(case.rule, suite)
        if found < needed:
            return decision.need_pairs_of(suite, found, needed, case.names)
    return None


def _pairs(case: Case, suite: SuiteRule, extra: dict[str, Pairs]) -> Pairs:
    if suite.source == "exam":
        return case.evidence.pairs(suite.name)
    return extra.get(suite.name, Pairs(suite.name, ()))


def _named_extras(rule: ExamRule, extra: Sequence[Pairs]) -> dict[str, Pairs]:
    expected = {suite.name for suite in rule.suites if suite.source == "extra"}
    named = {pairs.name: pairs for pairs in extra}
    unknown = set(named) - expected
    if unknown or len(named) != len(extra):
        raise InputError(
            "The exam was not closed.",
            f"A suite was brought that its rule does not state, or twice: {', '.join(sorted(unknown)) or 'twice'}.",
            "State it in the rule when the exam is opened.",
        )
    for pairs in extra:
        if len({cluster for cluster, _, _ in pairs.values}) < len(pairs.values):
            raise InputError("The exam was not closed.", f"{pairs.name} holds an item twice.", "Bring each item once.")
    return named


def _verdict(exam: sa.RowMapping, outcome: Decision, sentence: str, suites: tuple) -> Verdict:
    return Verdict(
        id=new_id(),
        agent=exam["agent"],
        candidate=exam["candidate"],
        incumbent=exam["incumbent"],
        decision=outcome,
        sentence=sentence,
        suites=suites,
        rule={key: value for key, value in exam["rule"].items() if key != "looks_taken"},
        created_at=time.time(),
        exam_id=exam["id"],
    )


def _earlier_exams(conn: sa.Connection, tenant: str, exam: sa.RowMapping) -> int:
    """Closed exams of the same pair: whoever repeats an exam until it passes is seen."""
    t = schema.exams
    same = [t.c[name] == exam[name] for name in ("agent", "candidate", "incumbent")]
    query = sa.select(sa.func.count()).select_from(t).where(t.c.tenant == tenant, t.c.state == "closed", *same)
    return int(conn.execute(query).scalar_one())


def _record_look(
    conn: sa.Connection, tenant: str, exam_id: str, num_before: int, record: Json
) -> Literal["continue", "decide"]:
    """Append one look and return what it says; one that somebody else recorded meanwhile speaks instead."""
    exam = find_exam(conn, tenant, exam_id)
    rule = exam["rule"]
    if exam["state"] != "open":
        return "decide"
    if len(rule["looks_taken"]) != num_before:
        return rule["looks_taken"][-1]["action"]
    t = schema.exams
    grown = {**rule, "looks_taken": [*rule["looks_taken"], record]}
    conn.execute(t.update().where(t.c.tenant == tenant, t.c.id == exam_id).values(rule=grown))
    return record["action"]


def _keep(conn: sa.Connection, tenant: str, verdict: Verdict, facts: Json) -> Verdict:
    """Store the verdict; one that decides closes its exam, one that needs data leaves it open."""
    t = schema.exams
    exam = find_exam(conn, tenant, str(verdict.exam_id))
    if exam["verdict_id"] is not None:  # somebody closed it between our reading and now
        return _stored(conn, tenant, exam["verdict_id"])
    save_verdict(conn, tenant, verdict, facts)
    if verdict.decision is not Decision.NEED_DATA:
        values = {"state": "closed", "closed_at": verdict.created_at, "verdict_id": verdict.id}
        conn.execute(t.update().where(t.c.tenant == tenant, t.c.id == exam["id"]).values(**values))
    return verdict


def _stored(conn: sa.Connection, tenant: str, verdict_id: str) -> Verdict:
    verdict = load_verdict(conn, tenant, verdict_id)
    if verdict is None:
        raise MissingError(f"There is no verdict {verdict_id}.", "The store lost it.", "nightschool doctor")
    return verdict
