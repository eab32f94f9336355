"""From values of two arms to the rows of a verdict: pair, estimate, read."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nightschool.gate import statistics
from nightschool.gate.reading import FALLS, read_suite
from nightschool.gate.rule import SMALLEST_EXAM, ExamRule, SuiteRule
from nightschool.gate.sessions import ExamSession
from nightschool.types import Json, Reading, Suite


@dataclass(frozen=True, slots=True)
class Pairs:
    """Values of one suite in both arms, one line per cluster: (cluster, candidate, incumbent).

    Rates lie in 0..1, ratios are logarithms. `unpaired` counts clusters with a value in one arm only.
    """

    name: str
    values: tuple[tuple[str, float, float], ...]
    unpaired: int = 0


@dataclass(frozen=True, slots=True)
class Judged:
    """A row of the verdict and what it was computed from."""

    suite: Suite
    inputs: Json


def pair_sessions(
    name: str,
    measure: Callable[[ExamSession], float | None],
    candidate: Sequence[ExamSession],
    incumbent: Sequence[ExamSession],
) -> Pairs:
    """Average each principal's sessions within an arm, then put the two averages side by side."""
    mine, theirs = _means(measure, candidate), _means(measure, incumbent)
    both = sorted(mine.keys() & theirs.keys())
    return Pairs(name, tuple((key, mine[key], theirs[key]) for key in both), len(mine.keys() ^ theirs.keys()))


def _means(measure: Callable[[ExamSession], float | None], sessions: Sequence[ExamSession]) -> dict[str, float]:
    values: dict[str, list[float]] = defaultdict(list)
    for session in sessions:
        value = measure(session)
        if value is not None:
            values[session.principal].append(value)
    return {principal: sum(found) / len(found) for principal, found in values.items()}


def judge(rule: ExamRule, suite: SuiteRule, pairs: Pairs, alpha: float) -> Judged:
    """Estimate and read one suite, one-sided `alpha` on each side.

    Edge: below the least number of pairs the reading is "not enough data" and no number is given.
    """
    needed = least_pairs(rule, suite)
    if len(pairs.values) < needed:
        return Judged(_empty(suite, len(pairs.values), needed), {"pairs": len(pairs.values), "needed": needed})
    differences = [candidate - incumbent for _, candidate, incumbent in pairs.values]
    with_pseudo = suite.scale == "rate" and not suite.must_improve
    estimate = (statistics.paired_rates if with_pseudo else statistics.paired)(differences, alpha)
    low, high = _shown(suite, estimate.low), _shown(suite, estimate.high)
    reading = read_suite(low, high, suite.margin, suite.fewer_is_better, suite.two_sided)
    row = Suite(
        name=suite.name,
        unit=suite.unit,
        num_pairs=len(pairs.values),
        difference=_shown(suite, estimate.difference),
        low=low,
        high=high,
        margin=suite.margin,
        fewer_is_better=suite.fewer_is_better,
        reading=reading,
        candidate=_level(suite, [candidate for _, candidate, _ in pairs.values]),
        incumbent=_level(suite, [incumbent for _, _, incumbent in pairs.values]),
        needed=_would_settle(rule, suite, estimate, reading, alpha),
        must_improve=suite.must_improve,
        two_sided=suite.two_sided,
    )
    return Judged(row, _inputs(suite, estimate, pairs, alpha, with_pseudo))


def least_pairs(rule: ExamRule, suite: SuiteRule) -> int:
    """Pairs below which the suite says nothing."""
    # The exam's own suites are as large as the exam, whose size is checked once; an extra one must bring its share,
    # or a few chosen items could stand for the set.
    if suite.source == "exam":
        return min(SMALLEST_EXAM, suite.num_pairs)
    return max(2, math.ceil(rule.least_share * suite.num_pairs))


def _empty(suite: SuiteRule, found: int, needed: int) -> Suite:
    return Suite(
        suite.name,
        suite.unit,
        found,
        None,
        None,
        None,
        suite.margin,
        suite.fewer_is_better,
        Reading.NO_DATA,
        needed=needed,
        must_improve=suite.must_improve,
        two_sided=suite.two_sided,
    )


def _shown(suite: SuiteRule, value: float) -> float:
    """A difference in the suite's unit: points for rates, percent for ratios."""
    if suite.scale == "rate":
        return 100 * value
    return 100 * math.expm1(value) if suite.scale == "ratio" else value


def _level(suite: SuiteRule, values: Sequence[float]) -> float:
    """One arm's own level: percent for rates, the geometric mean for ratios."""
    mean = sum(values) / len(values)
    if suite.scale == "rate":
        return 100 * mean
    return math.exp(mean) if suite.scale == "ratio" else mean


def _would_settle(
    rule: ExamRule, suite: SuiteRule, estimate: statistics.Estimate, reading: Reading, alpha: float
) -> int | None:
    """Clusters that would settle an open suite 8 times in 10, if what was observed is the truth.

    A suite that must improve is settled by showing a gain as large as observed, but at least the worthwhile one;
    another by excluding a loss above its margin. A truth on the margin itself is settled by no number, so the
    distance to it counts for a quarter of the margin at least.
    """
    settled = reading is Reading.BETTER or reading in FALLS
    if estimate.deviation <= 0 or settled or not (suite.must_improve or reading is Reading.CANNOT_TELL):
        return None
    if suite.must_improve:
        gain = -estimate.difference if suite.fewer_is_better else estimate.difference
        distance = max(gain, rule.worthwhile / 100 if suite.scale == "rate" else suite.margin)
    else:
        margin = _raw_margin(suite)
        toward = estimate.difference if suite.fewer_is_better else -estimate.difference
        loss = abs(estimate.difference) if suite.two_sided else toward
        distance = max(margin - loss, margin / 4)
    if distance <= 0:
        return None
    return statistics.about(statistics.needed_clusters(distance, estimate.deviation, alpha))


def _raw_margin(suite: SuiteRule) -> float:
    if suite.scale == "rate":
        return suite.margin / 100
    return math.log1p(suite.margin / 100) if suite.scale == "ratio" else suite.margin


def _inputs(suite: SuiteRule, estimate: statistics.Estimate, pairs: Pairs, alpha: float, with_pseudo: bool) -> Json:
    """What the formula was given, on the scale it was given on."""
    seen = statistics.smallest_effect(estimate.deviation, estimate.num_clusters, alpha) if estimate.deviation else 0.0
    formula = "t interval on cluster means of paired differences"
    values = {"values": [list(value) for value in pairs.values]} if suite.source == "extra" else {}
    return {
        **values,
        "formula": formula + (", two pseudo-clusters added (Agresti and Min)" if with_pseudo else ""),
        "scale": suite.scale,
        "pairs": estimate.num_clusters,
        "unpaired": pairs.unpaired,
        "difference": estimate.difference,
        "center": estimate.center,
        "deviation": estimate.deviation,
        "standard_error": estimate.standard_error,
        "degrees_of_freedom": estimate.degrees_of_freedom,
        "alpha_one_sided": alpha,
        "critical": estimate.critical,
        "sees": _shown(suite, seen),
    }
