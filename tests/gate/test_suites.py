import dataclasses
import math

import pytest

from nightschool.gate import rule as rules
from nightschool.gate.rule import default_rule
from nightschool.gate.sessions import ExamSession
from nightschool.gate.suites import Pairs, judge, pair_sessions
from nightschool.types import Reading

RULE = default_rule()


def session(principal, success):
    return ExamSession("s", principal, "p", (), success)


def pairs(name, *values):
    return Pairs(name, tuple((str(i), mine, theirs) for i, (mine, theirs) in enumerate(values)))


def test_sessions_are_averaged_by_principal_before_they_are_paired():
    candidate = [session("ann", 1.0), session("ann", 0.0), session("bob", 1.0), session("eve", 1.0)]
    incumbent = [session("ann", 0.0), session("bob", 1.0), session("bob", 1.0), session("kim", 1.0)]
    found = pair_sessions("success", lambda s: s.success, candidate, incumbent)
    assert found.values == (("ann", 0.5, 0.0), ("bob", 1.0, 1.0))
    assert found.unpaired == 2  # eve and kim


def test_a_missing_value_is_left_out_of_its_principals_mean():
    candidate = [session("ann", None), session("ann", 1.0), session("bob", None)]
    incumbent = [session("ann", 0.0), session("bob", 0.0)]
    found = pair_sessions("success", lambda s: s.success, candidate, incumbent)
    assert found.values == (("ann", 1.0, 0.0),)
    assert found.unpaired == 1


def test_success_is_the_plain_t_interval_in_points():
    # five of ten gained, none lost: mean 0.5, s = sqrt(10 * 0.25 / 9) = 0.527046, error 0.166667, t(0.95, 9) = 1.833113
    found = judge(RULE, RULE.suite(rules.SUCCESS), pairs(rules.SUCCESS, *[(1, 0)] * 5, *[(0, 0)] * 5), 0.05)
    row = found.suite
    assert (row.difference, row.candidate, row.incumbent) == (50.0, 50.0, 0.0)
    assert (row.low, row.high) == pytest.approx((50 - 30.551885, 50 + 30.551885), abs=1e-4)
    assert row.reading is Reading.BETTER
    assert row.needed is None


def test_a_rate_that_nobody_changed_is_not_certain():
    # 40 equal pairs: t(0.95, 39) / sqrt(41 * 42) = 1.684875 / 41.497 = 4.0602 points on either side
    found = judge(RULE, RULE.suite(rules.REFUSALS), pairs(rules.REFUSALS, *[(0, 0)] * 40), 0.05).suite
    assert (found.low, found.high) == pytest.approx((-4.0602, 4.0602), abs=1e-3)


def test_length_is_a_ratio_in_percent():
    values = [(math.log(120), math.log(100)), (math.log(110), math.log(100))] * 10
    found = judge(RULE, RULE.suite(rules.LENGTH), pairs(rules.LENGTH, *values), 0.05).suite
    # geometric mean of 1.2 and 1.1: sqrt(1.32) = 1.148913
    assert found.difference == pytest.approx(14.8913, abs=1e-4)
    assert found.candidate == pytest.approx(math.sqrt(120 * 110))
    assert found.incumbent == pytest.approx(100)
    assert found.two_sided
    assert found.reading is Reading.WITHIN


def test_too_few_pairs_give_no_number():
    found = judge(RULE, RULE.suite(rules.VALIDITY), pairs(rules.VALIDITY, *[(1, 1)] * 7), 0.05)
    assert (found.suite.reading, found.suite.difference, found.suite.needed) == (Reading.NO_DATA, None, 8)
    probes = RULE.suite(rules.PROBE_LIKELIHOOD)
    found = judge(RULE, probes, pairs(probes.name, *[(-1.0, -1.0)] * 57), 0.05)
    assert (found.suite.reading, found.suite.needed) == (Reading.NO_DATA, 58)


def test_needed_settles_a_margin_8_times_in_10():
    # differences of deviation 0.5: half plus, half minus; mean 0, margin 0.1: (2.4865 * 0.5 / 0.1)^2 = 154.6, and t
    suite = dataclasses.replace(RULE.suite(rules.PROBE_LIKELIHOOD), num_pairs=20)
    values = [(-1.0 + sign * 0.5, -1.0) for sign in (1, -1)] * 10
    found = judge(RULE, suite, pairs(suite.name, *values), 0.05)
    deviation = found.inputs["deviation"]  # sqrt(20/19) * 0.5 = 0.512989
    assert deviation == pytest.approx(0.512989, abs=1e-6)
    assert found.suite.reading is Reading.CANNOT_TELL
    # (1.644854 + 0.841621)^2 * 0.512989^2 / 0.01 = 162.7; with t one or two more; two digits upward: 170
    assert found.suite.needed == 170


def test_needed_shows_the_observed_gain_but_never_chases_a_tiny_one():
    suite = RULE.suite(rules.SUCCESS)
    values = [(1, 0)] * 26 + [(0, 1)] * 24 + [(1, 1)] * 50  # gain 2 points, s = sqrt(0.5 - 0.0004 ...) = 0.7103
    found = judge(RULE, suite, pairs(suite.name, *values), 0.05).suite
    assert found.reading is Reading.CANNOT_TELL
    # for 5 points, not 2: (2.486475 * 0.7104 / 0.05)^2 = 1248, two digits upward
    assert found.needed == 1300


def test_the_inputs_reproduce_the_interval():
    suite = RULE.suite(rules.VALIDITY)
    found = judge(RULE, suite, pairs(suite.name, *[(1, 1)] * 30, *[(0.5, 1)] * 5, *[(1, 0.5)] * 5), 0.05)
    inputs, row = found.inputs, found.suite
    assert row.low == pytest.approx(100 * (inputs["center"] - inputs["critical"] * inputs["standard_error"]))
    assert inputs["standard_error"] == pytest.approx(inputs["deviation"] / math.sqrt(inputs["pairs"] + 2))
    assert "Agresti" in inputs["formula"]
    assert "values" not in inputs  # people are not listed; probe items are
