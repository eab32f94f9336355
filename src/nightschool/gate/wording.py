"""Numbers and sentences of a verdict, as the dashboard's page on language spells them."""

from __future__ import annotations

from nightschool.gate.reading import PASSES
from nightschool.types import Reading, Suite

MINUS = "−"


def numbers(suite: Suite) -> tuple[float, float, float]:
    """Difference and interval of a suite that has them."""
    if suite.difference is None or suite.low is None or suite.high is None:
        raise ValueError(f"{suite.name} was not measured")
    return suite.difference, suite.low, suite.high


def decimals(suite: Suite) -> int:
    """Two significant digits of the difference, the same for both ends of its interval."""
    size = abs(suite.difference or 0.0)
    if suite.unit in ("points", "percent"):
        return 0 if size >= 10 else 1
    return 2 if size >= 0.1 else 3


def signed(value: float, places: int) -> str:
    value = round(value, places) + 0.0  # never a negative zero
    return f"{value:+.{places}f}".replace("-", MINUS)


def plain(value: float) -> str:
    return f"{value:g}".replace("-", MINUS)


def with_signs(suite: Suite) -> str:
    """`+4.0 points [−6.0, +14.0]`"""
    difference, low, high = numbers(suite)
    places = decimals(suite)
    return f"{signed(difference, places)} {suite.unit} [{signed(low, places)}, {signed(high, places)}]"


def as_size(suite: Suite) -> str:
    """`3.1 points [1.2, 5.0]`, for an interval that lies on one side of zero; the verb says which."""
    difference, low, high = numbers(suite)
    places = decimals(suite)
    near, far = sorted((abs(low), abs(high)))
    return f"{abs(difference):.{places}f} {suite.unit} [{near:.{places}f}, {far:.{places}f}]"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def gained(suite: Suite) -> str:
    return f"Better on {suite.name} by {as_size(suite)}"


def moved(suite: Suite) -> str:
    """`Tool-call validity fell by 3.1 points [1.2, 5.0]`"""
    verb = "fell" if (suite.difference or 0.0) < 0 else "rose"
    return f"{capital(suite.name)} {verb} by {as_size(suite)}"


def allowed(suite: Suite) -> str:
    return "a gain was needed" if suite.must_improve else f"up to {plain(suite.margin)} was allowed"


def harm(suite: Suite) -> str:
    """What an open interval could still hide."""
    if suite.two_sided:
        return f"a change above {plain(suite.margin)}"
    return f"a {'rise' if suite.fewer_is_better else 'loss'} above {plain(suite.margin)}"


def everything_else(blocked: Suite, suites: tuple[Suite, ...]) -> str:
    """What the other suites did, in one sentence."""
    others = [suite for suite in suites if suite.name != blocked.name]
    failed = [suite for suite in others if suite.reading not in PASSES]
    if failed:
        parts = [f"{suite.name} ({suite.reading})" for suite in failed]
        return f"Of the rest, not settled or worse: {', '.join(parts)}."
    if not others:
        return ""
    if any(suite.reading is Reading.WITHIN for suite in others):
        return "Everything else held its margin."
    return "Everything else was at least as good."
