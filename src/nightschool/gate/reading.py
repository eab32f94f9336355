"""What an interval says about one suite, in the words of the dashboard."""

from __future__ import annotations

from nightschool.types import Reading

# From best to worst: an equivalence suite gets the worse of its two one-sided readings.
ORDER = (
    Reading.BETTER,
    Reading.NOT_WORSE,
    Reading.WITHIN,
    Reading.CANNOT_TELL,
    Reading.WORSE,
    Reading.BEYOND,
)
PASSES = frozenset({Reading.BETTER, Reading.NOT_WORSE, Reading.WITHIN})
FALLS = frozenset({Reading.WORSE, Reading.BEYOND})


def read_interval(low: float, high: float, margin: float) -> Reading:
    """Read an interval turned so that plus is good; `margin` is the allowed loss."""
    if low > 0:
        return Reading.BETTER
    if low > -margin:
        return Reading.NOT_WORSE if high >= 0 else Reading.WITHIN
    if high < -margin:
        return Reading.BEYOND
    return Reading.WORSE if high < 0 else Reading.CANNOT_TELL


def read_suite(low: float, high: float, margin: float, fewer_is_better: bool, two_sided: bool = False) -> Reading:
    """Read an interval in its natural sign: turned where fewer is better, both ways where neither is good."""
    turned = read_interval(-high, -low, margin)
    if two_sided:
        # A change in either direction is a loss of the one who liked it the other way; "better" has no meaning here.
        return max(read_interval(low, high, margin), turned, key=ORDER.index)
    return turned if fewer_is_better else read_interval(low, high, margin)
