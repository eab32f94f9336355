"""Margins that a small exam can hold: an equal candidate passes each of them at least 19 times in 20.

Both arms are drawn from the same distribution, spread as much as docs/gate.md assumes: 120 customers, 2.5
replies a session. The success suite is simulated the other way round: an equal candidate passes it at most
1 in 20 (test_spending), a candidate as much better as the rule says it sees passes 8 in 10.
"""

import math

import numpy as np
import pytest

from nightschool.gate import rule as rules
from nightschool.gate import spending, statistics
from nightschool.gate.decision import blocks
from nightschool.gate.rule import default_rule, visible_effect
from nightschool.gate.suites import Pairs, judge
from nightschool.types import Reading

RULE = default_rule()
TIMES = 400
LAST_LOOK = spending.nominal(spending.boundaries([60, 120], 120, RULE.alpha)[-1])


def invalid_replies(rng, n):
    turns = rng.integers(2, 4, n)  # 2 or 3 replies, 5 % of them with a broken call
    return 1 - rng.binomial(turns, 0.05) / turns


DRAWS = {
    rules.VALIDITY: invalid_replies,
    rules.REFUSALS: lambda rng, n: (rng.random(n) < 0.03).astype(float),
    rules.SCORED: lambda rng, n: (rng.random(n) < 0.98).astype(float),
    rules.LENGTH: lambda rng, n: rng.normal(math.log(80), 0.42, n),  # difference: 0.6
    rules.ROUNDS: lambda rng, n: np.log(1 + rng.poisson(1.5, n)),
    rules.PROBE_LIKELIHOOD: lambda rng, n: rng.normal(-1.0, 0.25 / math.sqrt(2), n),
}


def passes(name, shift=0.0):
    """Share of exams whose suite does not block, the candidate moved by `shift` on the values' own scale."""
    suite = RULE.suite(name)
    rng = np.random.default_rng(6)
    alpha = LAST_LOOK if suite.source == "exam" else RULE.alpha
    good = 0
    for _ in range(TIMES):
        mine, theirs = (DRAWS[name](rng, suite.num_pairs) for _ in range(2))
        pairs = Pairs(name, tuple(zip(map(str, range(len(mine))), mine + shift, theirs, strict=True)))
        good += not blocks(judge(RULE, suite, pairs, alpha).suite, suite)
    return good / TIMES


@pytest.mark.parametrize("name", DRAWS)
def test_an_equal_candidate_passes(name):
    assert passes(name) >= 0.95


def test_every_suite_that_can_refuse_when_unsure_is_simulated():
    unsure = {suite.name for suite in RULE.suites if suite.blocks_unsure and not suite.must_improve}
    assert unsure == set(DRAWS)


@pytest.mark.parametrize(
    ("name", "shift"),
    [
        (rules.VALIDITY, -0.08),
        (rules.REFUSALS, 0.08),
        (rules.SCORED, -0.08),
        (rules.LENGTH, math.log(1.3)),
        (rules.LENGTH, math.log(0.7)),
        (rules.ROUNDS, math.log(1.5)),
        (rules.PROBE_LIKELIHOOD, -0.10),
    ],
)
def test_a_candidate_at_its_margin_is_stopped_19_times_in_20(name, shift):
    # four standard errors of 400 draws at 0.05 are 0.044
    assert passes(name, shift) < 0.05 + 0.044


def test_answers_to_probes_block_only_when_clearly_worse():
    suite = RULE.suite(rules.PROBE_ANSWERS)

    def read(lost):
        pairs = Pairs(suite.name, tuple((str(i), float(i < 20 - lost), float(i < 20)) for i in range(24)))
        return judge(RULE, suite, pairs, RULE.alpha).suite

    assert read(0).reading is Reading.NOT_WORSE
    assert read(3).reading is Reading.CANNOT_TELL
    assert not blocks(read(3), suite)
    assert blocks(read(10), suite)


def test_a_gain_as_large_as_stated_is_seen_8_times_in_10():
    """Customers of differing ease make outcomes of the two arms correlated by about a quarter, as assumed."""
    rng = np.random.default_rng(7)
    gain = visible_effect(RULE, RULE.suite(rules.SUCCESS)) / 100
    mixed = rng.random((4000, 120))
    shared = rng.random((4000, 120))
    arms = [np.where(rng.random(mixed.shape) < 0.5, shared, rng.random(mixed.shape)) for _ in range(2)]
    differences = (arms[0] < 0.5 + gain / 2).astype(float) - (arms[1] < 0.5 - gain / 2)
    seen = np.mean([statistics.paired(row, LAST_LOOK).low > 0 for row in differences])
    # the correlation of two such arms is 0.5 * 0.5 = 0.25 at one half, a little less apart from it
    assert seen == pytest.approx(0.8, abs=0.03)
