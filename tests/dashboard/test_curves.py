"""Curves: gaps stay gaps, thinning keeps the extremes, captions tell the story without the picture."""

import math

from hypothesis import given
from hypothesis import strategies as st

from nightschool.dashboard.curves import plots
from nightschool.dashboard.series import caption, sparkline, stand_in, thin

points = st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), max_size=3000).map(lambda v: list(enumerate(v)))


def test_a_caption_says_where_it_went() -> None:
    assert caption("Loss", [(1, 1.2), (2, 0.9), (3, 0.41)]) == "Loss fell from 1.2 to 0.41 over 3 steps."
    assert caption("KL", [(1, 0.1), (2, None), (3, 0.4)]) == "KL rose from 0.10 to 0.40 over 3 steps; missing in 1."
    assert caption("Value", [(1, math.nan), (2, None)]) == "Value: missing in all 2 steps."


def test_few_points_are_drawn_as_measured() -> None:
    thinned = thin([(1, 0.5), (2, math.inf), (3, None)])
    assert thinned.mid == [0.5, None, None]
    assert thinned.low is None


def test_many_points_become_means_with_their_extremes() -> None:
    # 4 points on 2 places: means of (0, 4) and (2, 8)
    thinned = thin([(1, 0.0), (2, 4.0), (3, 2.0), (4, 8.0)], limit=2)
    assert thinned.mid == [2.0, 5.0]
    assert thinned.low == [0.0, 2.0]
    assert thinned.high == [4.0, 8.0]


@given(points)
def test_thinning_loses_no_extreme_and_invents_no_value(raw: list) -> None:
    thinned = thin(raw, limit=100)
    assert len(thinned.mid) <= 100
    known = [value for _, value in raw if value is not None]
    if thinned.low is not None and thinned.high is not None and known:
        assert min(v for v in thinned.low if v is not None) == min(known)
        assert max(v for v in thinned.high if v is not None) == max(known)


def test_the_stand_in_breaks_its_line_at_a_gap() -> None:
    drawn = stand_in([("ink", [(1, 1.0), (2, 2.0), (3, None), (4, 1.0), (5, 2.0)])], [0.5])
    assert drawn.count("<polyline") == 2
    assert drawn.count('class="stop"') == 1
    assert stand_in([("ink", [(1, None)])], []) == ""


def test_a_sparkline_ends_in_its_last_value() -> None:
    # 30 days, most of them empty: the last point is at the top, 3 px from the edge
    assert '<circle cx="92.0" cy="3.0"' in sparkline([0] * 29 + [7])
    assert "circle" in sparkline([0])


def test_good_and_bad_replies_share_a_plot_and_unknown_metrics_get_their_own() -> None:
    metrics = {
        "held_out_bad": [(1, 0.0), (2, -2.5)],
        "held_out_good": [(1, 0.0), (2, -0.1)],
        "zeta_9": [(1, 1.0)],
        "loss": [(1, 2.0)],
        "kl": [(1, 0.1), (2, 0.4)],
        "kappa": [(1, 1.0), (2, 0.2)],
    }
    drawn = plots(metrics, {"training": {"kl_stop": 0.5}})
    assert [plot["title"] for plot in drawn] == [
        "Loss",
        "KL to the anchor",
        "Pessimism κ / β",
        "Held-out log-ratio",
        "Zeta 9",
    ]
    assert drawn[1]["stops"] == [{"label": "stop", "value": 0.5}]
    assert drawn[2]["stops"] == [{"label": "used up", "value": 0.0}]
    assert [row["tone"] for row in drawn[3]["series"]] == ["better", "worse"]
    assert drawn[3]["last"][1]["value"] == "−2.5"


def test_the_table_of_a_long_curve_has_its_first_and_last_step() -> None:
    [plot] = plots({"loss": [(step, float(step)) for step in range(1, 201)]}, {})
    steps = [row["step"] for row in plot["table"]]
    assert len(steps) == 25
    assert (steps[0], steps[-1]) == (1, 200)
