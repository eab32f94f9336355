import dataclasses

import pytest

from nightschool.gate import rule as rules
from nightschool.gate.decision import Names, decide, need_pairs
from nightschool.gate.reading import read_suite
from nightschool.gate.rule import ExamRule, SuiteRule
from nightschool.types import Decision, Reading, Suite

NAMES = Names("v5", "v3")
RULE = ExamRule(
    (
        SuiteRule(rules.SUCCESS, "points", "rate", 3.0, 120, 60.0, must_improve=True),
        SuiteRule(rules.VALIDITY, "points", "rate", 2.0, 120, 20.0),
        SuiteRule(rules.REFUSALS, "points", "rate", 2.0, 120, 20.0, fewer_is_better=True),
        SuiteRule(rules.PROBE_LIKELIHOOD, "nats per token", "mean", 0.1, 72, 0.25, source="extra"),
        SuiteRule(rules.PROBE_ANSWERS, "points", "rate", 15.0, 24, 35.0, blocks_unsure=False, source="extra"),
    )
)
GOOD = {
    rules.SUCCESS: (15.8, 10.8, 20.8),
    rules.VALIDITY: (-0.1, -0.9, 0.7),
    rules.REFUSALS: (0.4, -0.6, 1.4),
    rules.PROBE_LIKELIHOOD: (0.01, -0.02, 0.04),
    rules.PROBE_ANSWERS: (0.0, -8.0, 8.0),
}


def say(needed=None, **changed):
    """Decide with the rows of GOOD, some replaced: success=(d, lo, hi), or None for no data."""
    names = {"success": rules.SUCCESS, "validity": rules.VALIDITY, "refusals": rules.REFUSALS}
    names |= {"likelihood": rules.PROBE_LIKELIHOOD, "answers": rules.PROBE_ANSWERS}
    numbers = GOOD | {names[key]: value for key, value in changed.items()}
    rows = []
    for suite in RULE.suites:
        fixed = {"name": suite.name, "unit": suite.unit, "num_pairs": 60, "margin": suite.margin}
        fixed |= {"fewer_is_better": suite.fewer_is_better, "must_improve": suite.must_improve, "needed": needed}
        if numbers[suite.name] is None:
            found = {"difference": None, "low": None, "high": None, "reading": Reading.NO_DATA}
        else:
            difference, low, high = numbers[suite.name]
            found = {"difference": difference, "low": low, "high": high}
            found["reading"] = read_suite(low, high, suite.margin, suite.fewer_is_better)
        rows.append(Suite(**fixed, **found))
    return decide(RULE, rows, NAMES)


def test_promote():
    assert say() == (
        Decision.PROMOTE,
        "PROMOTE v5 over v3. Better on held-out traffic by 16 points [11, 21]; every margin held.",
    )


def test_refuse_quotes_measured_value_interval_and_margin():
    assert say(validity=(-3.1, -5.0, -1.2)) == (
        Decision.REFUSE,
        "REFUSE v5. Tool-call validity fell by 3.1 points [1.2, 5.0]; up to 2 was allowed. "
        "Everything else was at least as good.",
    )


def test_more_refusals_rise():
    assert say(refusals=(4.0, 2.5, 5.5))[1].startswith("REFUSE v5. Refusals rose by 4.0 points [2.5, 5.5]; up to 2")


def test_the_first_suite_that_blocks_is_quoted_and_the_rest_is_named():
    _, sentence = say(success=(-20.0, -28.0, -12.0), refusals=(4.0, 2.5, 5.5))
    assert sentence == (
        "REFUSE v5. Held-out traffic fell by 20 points [12, 28]; a gain was needed. "
        "Of the rest, not settled or worse: refusals (worse beyond margin)."
    )


def test_slightly_worse_elsewhere_is_not_called_as_good():
    _, sentence = say(validity=(-3.1, -5.0, -2.1), refusals=(0.8, 0.2, 1.4))
    assert sentence.endswith("Everything else held its margin.")


def test_cannot_tell_names_what_would_settle_it():
    assert say(needed=250, success=(4.0, -6.0, 14.0)) == (
        Decision.REFUSE,
        "CANNOT TELL: held-out traffic +4.0 points [−6.0, +14.0] includes a loss above 3. "
        "About 250 customers would settle it, there are 60.",
    )
    _, sentence = say(needed=300, likelihood=(-0.05, -0.15, 0.05))
    assert sentence == (
        "CANNOT TELL: OOD probes, likelihood −0.050 nats per token [−0.150, +0.050] includes a loss above 0.1. "
        "About 300 items would settle it, there are 60."
    )
    assert "includes a rise above 2." in say(refusals=(1.0, -1.0, 3.0))[1]


def test_not_worse_is_not_enough_where_a_gain_is_asked():
    decision, sentence = say(needed=900, success=(0.4, -2.0, 2.8))
    assert decision is Decision.REFUSE
    assert sentence == (
        "REFUSE v5. Held-out traffic +0.4 points [−2.0, +2.8]; a gain was needed. "
        "About 900 customers would settle it, there are 60."
    )


def test_unsure_blocks_only_where_the_rule_says_so():
    decision, sentence = say(answers=(-2.0, -18.0, 14.0))
    assert decision is Decision.PROMOTE
    assert sentence.endswith("OOD probes, answers: cannot tell, as the rule allows.")
    assert say(answers=(-25.0, -40.0, -10.0))[0] is Decision.REFUSE


def test_no_data_in_any_suite_is_not_a_refusal():
    decision, sentence = say(needed=58, likelihood=None)
    assert decision is Decision.NEED_DATA
    assert sentence == (
        "NOT ENOUGH DATA: 60 of 58 items for OOD probes, likelihood. The exam stays open. v3 keeps serving."
    )


def test_too_few_pairs_name_what_was_lost():
    assert need_pairs(41, 120, {}, NAMES) == (
        "NOT ENOUGH DATA: 41 of 120 paired customers. The exam stays open. v3 keeps serving."
    )
    assert "3 sessions could not be scored (no outcome was reported: 3)." in need_pairs(
        41, 120, {"no outcome was reported": 3}, NAMES
    )


@pytest.mark.parametrize("name", [suite.name for suite in RULE.suites])
@pytest.mark.parametrize("reading", list(Reading))
def test_nothing_but_passing_everywhere_promotes(name, reading):
    """Every reading in every place: promoted exactly when that suite's own condition holds."""
    suite = RULE.suite(name)
    rows = [
        Suite(s.name, s.unit, 60, 5.0, 3.0, 7.0, s.margin, s.fewer_is_better, Reading.BETTER, needed=1)
        for s in RULE.suites
    ]
    rows = [dataclasses.replace(row, reading=reading) if row.name == name else row for row in rows]
    passing = {Reading.BETTER, Reading.NOT_WORSE, Reading.WITHIN}
    if suite.must_improve:
        passing = {Reading.BETTER}
    if not suite.blocks_unsure:
        passing.add(Reading.CANNOT_TELL)
    assert (decide(RULE, rows, NAMES)[0] is Decision.PROMOTE) == (reading in passing)
