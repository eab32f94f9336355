"""The rule of an exam, fixed before its first exchange: what is measured, what loss is allowed, when it may look."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

from nightschool.errors import ConfigError
from nightschool.gate import spending, statistics
from nightschool.types import Json

SUCCESS = "held-out traffic"
SCORED = "sessions scored"
VALIDITY = "tool-call validity"
REFUSALS = "refusals"
LENGTH = "reply length"
ROUNDS = "rounds"
PROBE_LIKELIHOOD = "OOD probes, likelihood"
PROBE_ANSWERS = "OOD probes, answers"

SCALES = ("rate", "ratio", "mean")
SMALLEST_EXAM = 8
PROBES = (72, 24)  # items of the shipped set that are scored, and answered


@dataclass(frozen=True, slots=True)
class SuiteRule:
    """How one suite is judged.

    `scale`: "rate" values lie in 0..1 and differences are points of 100; "ratio" values are logarithms and
    differences percent; "mean" values are compared as they are. `margin` is the allowed loss in the suite's
    unit. `blocks_unsure` says whether "cannot tell" refuses. `num_pairs` is the planned number of independent
    pairs (customers, or probe items) and `deviation` the assumed standard deviation of one pair's difference (in
    points, in hundredths of a logarithm, or in the mean's unit): together they state, beforehand, what the suite can
    see.
    """

    name: str
    unit: str
    scale: str
    margin: float
    num_pairs: int
    deviation: float
    fewer_is_better: bool = False
    two_sided: bool = False
    must_improve: bool = False
    blocks_unsure: bool = True
    source: str = "exam"  # exam: measured on the exam's sessions | extra: brought to the closing, e.g. probes


@dataclass(frozen=True, slots=True)
class ExamRule:
    """One exam's rule. `alpha` is one-sided and covers all looks together.

    `looks` are shares of the planned customers at which the exam may end early. The exam closes when at least
    `least_share` of the planned customers are paired. `worthwhile` is the gain, in points, below which a
    difference is not worth more exams: it only enters the forecast of needed customers.
    """

    suites: tuple[SuiteRule, ...]
    customers: int = 120
    alpha: float = 0.05
    looks: tuple[float, ...] = (0.5, 1.0)
    least_share: float = 0.8
    worthwhile: float = 5.0

    def __post_init__(self) -> None:
        if self.customers < SMALLEST_EXAM or not 0 < self.alpha < 0.5 or not 0 < self.least_share <= 1:
            raise ConfigError(
                "The exam's rule is out of range.",
                f"It needs {SMALLEST_EXAM} customers or more, alpha in (0, 0.5), least_share in (0, 1].",
                "nightschool gate --help",
            )
        if not self.looks or list(self.looks) != sorted(set(self.looks)) or self.looks[0] <= 0 or self.looks[-1] != 1.0:
            raise ConfigError(
                "The exam's looks are out of order.", "They are growing shares that end at 1.", "docs/gate.md"
            )
        if not self.suites or len({suite.name for suite in self.suites}) != len(self.suites):
            raise ConfigError(
                "The exam's suites are not distinct.", "Each suite needs a name of its own.", "docs/gate.md"
            )
        if any(s.margin < 0 or s.deviation <= 0 or s.scale not in SCALES or s.num_pairs < 2 for s in self.suites):
            raise ConfigError(
                "A suite of the exam is out of range.", "Margin, deviation, scale or pairs.", "docs/gate.md"
            )

    @property
    def least_pairs(self) -> int:
        """Paired customers below which there is not enough data to close."""
        return max(SMALLEST_EXAM, math.ceil(self.least_share * self.customers))

    def look_counts(self) -> list[int]:
        """Paired customers at which the exam looks."""
        return [max(SMALLEST_EXAM, math.ceil(share * self.customers)) for share in self.looks]

    def suite(self, name: str) -> SuiteRule:
        return next(suite for suite in self.suites if suite.name == name)


def default_rule(customers: int = 120, alpha: float = 0.05, probes: tuple[int, int] | None = PROBES) -> ExamRule:
    """The rule of a small exam. `probes` are the numbers of scored and answered probe items, `None` for none.

    The assumed deviations are stated in docs/gate.md. The margins are the ones an exam of 120 customers can hold:
    an equal candidate passes each of them at least 19 times in 20.
    """
    success = 100 * statistics.paired_deviation(0.5, 0.5, 0.25)
    suites = [SuiteRule(SUCCESS, "points", "rate", 5.0, customers, success, must_improve=True)]
    if probes is not None:
        scored, answered = probes
        suites += [
            SuiteRule(PROBE_LIKELIHOOD, "nats per token", "mean", 0.10, scored, 0.25, source="extra"),
            SuiteRule(PROBE_ANSWERS, "points", "rate", 15.0, answered, 35.0, blocks_unsure=False, source="extra"),
        ]
    suites += [
        SuiteRule(VALIDITY, "points", "rate", 8.0, customers, 20.0),
        SuiteRule(REFUSALS, "points", "rate", 8.0, customers, 24.0, fewer_is_better=True),
        SuiteRule(SCORED, "points", "rate", 8.0, customers, 20.0),
        SuiteRule(LENGTH, "percent", "ratio", 30.0, customers, 60.0, two_sided=True),
        SuiteRule(ROUNDS, "percent", "ratio", 50.0, customers, 60.0, fewer_is_better=True),
    ]
    return ExamRule(tuple(suites), customers=customers, alpha=alpha)


def visible_effect(rule: ExamRule, suite: SuiteRule) -> float:
    """The smallest true effect the suite sees 8 times in 10, in its unit, at the planned number of pairs.

    For the suite that must improve, the last look's stricter threshold counts.
    """
    alpha = rule.alpha
    if suite.must_improve:
        counts = rule.look_counts()
        alpha = spending.nominal(spending.boundaries(counts, rule.customers, rule.alpha, final=True)[-1])
    effect = statistics.smallest_effect(suite.deviation, suite.num_pairs, alpha)
    return 100 * math.expm1(effect / 100) if suite.scale == "ratio" else effect


def rule_as_json(rule: ExamRule) -> Json:
    """The rule with what it can see, as it is written into the exam before the first exchange."""
    return {
        **asdict(rule),
        "least_pairs": rule.least_pairs,
        "look_counts": rule.look_counts(),
        "sees": {suite.name: visible_effect(rule, suite) for suite in rule.suites},
        "power": statistics.POWER,
        "statement": statement(rule),
    }


def rule_from_json(raw: Json) -> ExamRule:
    """The rule as it was stated. Inverse of `rule_as_json`."""
    suites = tuple(SuiteRule(**suite) for suite in raw["suites"])
    plain = {name: raw[name] for name in ("customers", "alpha", "least_share", "worthwhile")}
    return ExamRule(suites, looks=tuple(raw["looks"]), **plain)


def statement(rule: ExamRule) -> str:
    """What is said beforehand, in words."""
    gain = next((suite for suite in rule.suites if suite.must_improve), None)
    odds = math.floor(1 / rule.alpha + 1e-9)
    seen = "" if gain is None else f"sees a gain of {visible_effect(rule, gain):.0f} points 8 times in 10, and "
    return f"This gate {seen}wrongly promotes an equal candidate at most 1 in {odds}."


def rule_from_config(section: Json) -> ExamRule:
    """The rule that the `[gate]` table of the configuration asks for.

    Keys: `customers`, `alpha`, `looks`, `probes` (false leaves them out) and a table `margins` by suite name.

    Raises:
        ConfigError: an unknown key or suite, or a value out of range.
    """
    unknown = set(section) - {"customers", "alpha", "looks", "probes", "margins"}
    if unknown:
        raise ConfigError(f"[gate] has no key {min(unknown)!r}.", "", "nightschool gate --help")
    probes = PROBES if section.get("probes", True) else None
    rule = default_rule(section.get("customers", 120), section.get("alpha", 0.05), probes)
    margins: dict[str, float] = section.get("margins", {})
    absent = set(margins) - {suite.name for suite in rule.suites}
    if absent:
        raise ConfigError(f"[gate] gives a margin for {min(absent)!r}.", "There is no such suite.", "docs/gate.md")
    suites = tuple(replace(suite, margin=margins.get(suite.name, suite.margin)) for suite in rule.suites)
    return replace(rule, suites=suites, looks=tuple(section.get("looks", rule.looks)))
