"""From the rows of a verdict to one decision and one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nightschool.gate import wording
from nightschool.gate.reading import FALLS, PASSES
from nightschool.gate.rule import ExamRule, SuiteRule
from nightschool.types import Decision, Reading, Suite


@dataclass(frozen=True, slots=True)
class Names:
    """How people read the two policies: `v3`, or the two ends of a digest."""

    candidate: str
    incumbent: str


def decide(rule: ExamRule, suites: Sequence[Suite], names: Names) -> tuple[Decision, str]:
    """Promote when the suites that must improve are better and no other suite blocks.

    The sentence quotes the first suite that blocks, in the order of the rule.
    """
    rows = {suite.name: suite for suite in suites}
    ordered = tuple(rows[suite.name] for suite in rule.suites)
    for row, suite in zip(ordered, rule.suites, strict=True):
        if blocks(row, suite):
            return _quote(row, suite, ordered, names)
    return Decision.PROMOTE, _promote(ordered, names)


def blocks(row: Suite, rule: SuiteRule) -> bool:
    """Whether this suite alone keeps the candidate from serving."""
    if rule.must_improve:
        return row.reading is not Reading.BETTER
    if row.reading is Reading.CANNOT_TELL:
        return rule.blocks_unsure
    return row.reading not in PASSES


def need_pairs(have: int, needed: int, missing: dict[str, int], names: Names) -> str:
    """The sentence of an exam that may not close yet."""
    lost = sum(missing.values())
    why = ", ".join(f"{reason}: {count}" for reason, count in missing.items())
    note = f" {lost} sessions could not be scored ({why})." if lost else ""
    counts = f"{have:,} of {needed:,} paired customers."
    return f"NOT ENOUGH DATA: {counts}{note} The exam stays open. {names.incumbent} keeps serving."


def need_pairs_of(suite: SuiteRule, have: int, needed: int, names: Names) -> str:
    """The sentence of an exam that lacks one suite."""
    counts = f"{have} of {needed} {things(suite)} for {suite.name}."
    return f"NOT ENOUGH DATA: {counts} The exam stays open. {names.incumbent} keeps serving."


def things(suite: SuiteRule) -> str:
    """What the suite's pairs are pairs of."""
    return "customers" if suite.source == "exam" else "items"


def _promote(rows: tuple[Suite, ...], names: Names) -> str:
    gains = "; ".join(wording.gained(row) for row in rows if row.must_improve) or "Nothing was asked to improve"
    unsure = [row.name for row in rows if row.reading is Reading.CANNOT_TELL]
    margins = "every margin held"
    if unsure:
        margins = f"every margin held that had to; {', '.join(unsure)}: cannot tell, as the rule allows"
    return f"PROMOTE {names.candidate} over {names.incumbent}. {gains}; {margins}."


def _quote(row: Suite, rule: SuiteRule, rows: tuple[Suite, ...], names: Names) -> tuple[Decision, str]:
    if row.reading is Reading.NO_DATA:
        return Decision.NEED_DATA, need_pairs_of(rule, row.num_pairs, row.needed or 0, names)
    if row.reading in FALLS:
        rest = wording.everything_else(row, rows)
        return (
            Decision.REFUSE,
            f"REFUSE {names.candidate}. {wording.moved(row)}; {wording.allowed(row)}. {rest}".rstrip(),
        )
    settle = ""
    if row.needed is not None and row.needed > row.num_pairs:
        settle = f" About {row.needed:,} {things(rule)} would settle it, there are {row.num_pairs:,}."
    if row.reading is Reading.CANNOT_TELL:
        measured = f"{row.name} {wording.with_signs(row)}"
        return Decision.REFUSE, f"CANNOT TELL: {measured} includes {wording.harm(row)}.{settle}"
    measured = f"{wording.capital(row.name)} {wording.with_signs(row)}; {wording.allowed(row)}."
    return Decision.REFUSE, f"REFUSE {names.candidate}. {measured}{settle}"
