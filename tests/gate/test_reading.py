import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightschool.gate.reading import FALLS, PASSES, read_interval, read_suite
from nightschool.types import Reading

numbers = st.floats(-100, 100).map(lambda x: round(x, 1))
margins = st.floats(0, 30).map(lambda x: round(x, 1))


def page(lo: float, hi: float, m: float) -> str:
    """The dashboard's rule, word for word, first match counts."""
    rules = [
        (lo > 0, "better"),
        (lo > -m and hi >= 0, "not worse"),
        (lo > -m and hi < 0, "slightly worse, within margin"),
        (hi < -m, "worse beyond margin"),
        (lo <= -m and hi < 0, "worse"),
    ]
    return next((word for holds, word in rules if holds), "cannot tell")


@given(numbers, numbers, margins)
def test_follows_the_page(one, other, margin):
    low, high = sorted((one, other))
    assert read_interval(low, high, margin) == page(low, high, margin)


@pytest.mark.parametrize(
    ("low", "high", "margin", "expected"),
    [
        (10.8, 20.8, 2, Reading.BETTER),  # the wireframe's rows
        (-0.9, 3.3, 3, Reading.NOT_WORSE),
        (-5.0, -1.2, 2, Reading.WORSE),
        (-1.5, -0.2, 2, Reading.WITHIN),
        (-5.0, -2.1, 2, Reading.BEYOND),
        (-6.0, 14.0, 3, Reading.CANNOT_TELL),
        (0.0, 0.0, 0, Reading.CANNOT_TELL),  # nothing is shown by an interval that is a point at no margin
    ],
)
def test_examples(low, high, margin, expected):
    assert read_interval(low, high, margin) is expected


@given(numbers, numbers, margins)
def test_fewer_is_better_turns_the_interval(one, other, margin):
    low, high = sorted((one, other))
    assert read_suite(low, high, margin, fewer_is_better=True) == page(-high, -low, margin)


@given(numbers, numbers, margins)
def test_two_sided_passes_exactly_inside_the_margin_on_both_sides(one, other, margin):
    low, high = sorted((one, other))
    found = read_suite(low, high, margin, fewer_is_better=False, two_sided=True)
    assert found is not Reading.BETTER
    assert (found in PASSES) == (low > -margin and high < margin)
    outside = (low <= -margin and high < 0) or (high >= margin and low > 0)
    assert (found in FALLS) == outside


@given(numbers, numbers, numbers, margins)
def test_more_is_never_read_as_worse(one, other, shift, margin):
    low, high = sorted((one, other))
    order = [Reading.BEYOND, Reading.WORSE, Reading.CANNOT_TELL, Reading.WITHIN, Reading.NOT_WORSE, Reading.BETTER]
    before, after = read_interval(low, high, margin), read_interval(low + abs(shift), high + abs(shift), margin)
    assert order.index(after) >= order.index(before)
