"""Geometry of interval rows: every mark lies inside its cell, on the side it belongs to."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightschool.dashboard.intervals import INSET, SHARE, axis, difference_scale, row, tick_labels
from nightschool.dashboard.suites import suite_groups

PERCENT = re.compile(r'(?:x1|x2|cx|x)="([-\d.]+)%"')


def test_a_share_of_half_lies_in_the_middle() -> None:
    # 3 % are left free on both sides, so 0 lies at 3 %, 100 at 97 %, 79 at 3 + 94 * 0.79 = 77.26
    assert (SHARE.x(0), SHARE.x(50), SHARE.x(100)) == (INSET, 50.0, 97.0)
    assert 'cx="77.26%"' in row(SHARE, 79, 74, 84)


def test_too_few_judged_sessions_are_hollow() -> None:
    assert 'class="iv neutral thin"' in row(SHARE, 80, 66, 90, solid=False)
    assert "thin" not in row(SHARE, 80, 66, 90)


def test_nothing_is_drawn_for_a_missing_interval() -> None:
    drawn = row(SHARE, None, None, None)
    assert "circle" not in drawn
    assert "span" not in drawn


def test_no_style_attribute_that_the_csp_would_refuse() -> None:
    scale = difference_scale([(-5, 1, -2)])
    assert "style" not in row(scale, -3, -5, 1, losses=[(-2, "left")]) + axis(scale, tick_labels(scale))


def test_a_clipped_end_gets_an_arrow_instead_of_a_cap() -> None:
    scale = difference_scale([(-300, 300, -10)], widest=100)
    drawn = row(scale, 0, -300, 300)
    assert drawn.count('class="arrow"') == 2
    assert 'class="cap"' not in drawn


def test_the_loss_lies_left_of_its_margin_and_right_of_it_where_fewer_is_better() -> None:
    scale = difference_scale([(-5, 5, -2), (-5, 5, 2)])
    left = row(scale, 0, -1, 1, losses=[(-2, "left")])
    right = row(scale, 0, -1, 1, losses=[(2, "right")])
    assert 'class="loss" x="0%"' in left
    edge = re.search(r'class="loss" x="([\d.]+)%" y="2" width="([\d.]+)%"', right)
    assert edge
    assert float(edge[1]) > scale.x(0)
    assert float(edge[1]) + float(edge[2]) == pytest.approx(100)


def test_labels_of_an_axis_have_the_decimals_of_its_step() -> None:
    scale = difference_scale([(-0.02, 0.02, -0.1)])
    assert tick_labels(scale) == ["−0.10", "−0.05", "0.00"]
    # 27.6 wide with its borders: a sixth is 4.6, the next round step is 5
    assert tick_labels(difference_scale([(-5, 18, -5)])) == ["−5", "0", "+5", "+10", "+15", "+20"]


numbers = st.floats(-1e6, 1e6, allow_nan=False)


@given(st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=5))
def test_every_mark_of_every_row_is_inside_its_cell(raw: list) -> None:
    rows = [(min(a, b), max(a, b), margin) for a, b, margin in raw]
    scale = difference_scale(rows)
    assert scale.low < 0 < scale.high
    assert 1 <= len(scale.ticks) <= 7
    for low, high, margin in rows:
        drawn = str(row(scale, (low + high) / 2, low, high, losses=[(margin, "left")]))
        assert all(0 <= float(x) <= 100 for x in PERCENT.findall(drawn))
        assert "arrow" not in drawn


def test_suites_share_an_axis_with_their_unit_and_keep_their_order() -> None:
    suites = [
        suite("held-out traffic", "points", 18.3, 7.8, 28.8, "better"),
        suite("likelihood", "nats per token", -0.002, -0.022, 0.019, "not worse"),
        suite("validity", "points", -27.0, -34.0, -19.0, "worse beyond margin"),
        {**suite("answers", "points", None, None, None, "not enough data"), "needed": 20},
    ]
    groups = suite_groups(suites)
    assert [group["unit"] for group in groups] == ["points", "nats per token"]
    assert [row["name"] for row in groups[0]["rows"]] == ["held-out traffic", "validity", "answers"]
    assert [row["numbers"] for row in groups[0]["rows"]] == ["+18 [+8, +29]", "−27 [−34, −19]", None]
    assert [row["tone"] for row in groups[0]["rows"]] == ["better", "worse", "neutral"]
    assert groups[1]["rows"][0]["numbers"] == "−0.002 [−0.022, +0.019]"


def test_margins_keep_their_natural_sign() -> None:
    fewer = {**suite("refusals", "points", 0.4, -0.6, 1.4, "not worse"), "fewer_is_better": True}
    both = {**suite("length", "percent", 4.9, 3.3, 6.5, "slightly worse, within margin"), "two_sided": True}
    rows = [group["rows"][0] for group in suite_groups([fewer])] + [group["rows"][0] for group in suite_groups([both])]
    assert [row["margin_text"] for row in rows] == ["+5", "±5"]
    assert rows[1]["plot"].count('class="loss"') == 2


def suite(name: str, unit: str, difference: float | None, low: float | None, high: float | None, reading: str) -> dict:
    return {
        "name": name,
        "unit": unit,
        "num_pairs": 120,
        "difference": difference,
        "low": low,
        "high": high,
        "margin": 5.0,
        "fewer_is_better": False,
        "reading": reading,
    }
