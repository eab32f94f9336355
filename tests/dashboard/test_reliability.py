"""What a value model is worth: points where they belong, the interval, what is called off, and the page of a run."""

from __future__ import annotations

import re

import numpy as np
import pytest
from dashboard import states

from nightschool.dashboard.reliability import believed, plot
from nightschool.types import Json
from nightschool.valuation.reliability import Outcomes, report


def reported(came_true: list[int]) -> Json:
    """Ten rows that were called 0.2, ten that were called 0.8."""
    p = np.repeat([0.2, 0.8], 10)
    y = np.concatenate([np.arange(10) < count for count in came_true]).astype(float)
    return report(p, Outcomes(y, np.ones(20), [str(row) for row in range(20)]))


def test_a_point_stands_right_of_what_was_predicted_and_as_high_as_what_came_true() -> None:
    # a square of 200 that begins at 40, 10: .2 lies at 40 + 40, .8 at 200; came true .2 at 10 + 160, .8 at 50
    drawn = plot(reported([2, 8])["reliability"])
    assert re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', drawn) == [("80.0", "170.0"), ("200.0", "50.0")]
    # se = sqrt(.16 / 10) = .126 by the predicted rate, .133 by the rows: .2 +- 1.96 * .133 reaches from 0 to .461
    (low, high), *_ = re.findall(r'class="span" x1="80.0" y1="([\d.]+)" x2="80.0" y2="([\d.]+)"', drawn)
    assert (float(low), float(high)) == (210.0, pytest.approx(10 + 200 * (1 - 0.4613), abs=0.2))
    assert "style" not in drawn, "the policy of the page would refuse it"


def test_what_lies_off_by_more_than_its_interval_is_marked_and_counted() -> None:
    found = believed(reported([9, 8]))
    assert found is not None
    assert re.findall(r'<g class="(\w+)">', found["plot"]) == ["worse", "neutral"]
    assert found["caption"].endswith("interval: 1 of 2 bins.")
    assert "Brier score 0.37" in found["caption"]  # (9 * .64 + .04 + 8 * .04 + 2 * .64) / 20 = .37


def test_nothing_is_drawn_where_nothing_was_fitted() -> None:
    assert believed(None) is None
    assert believed({}) is None


def test_an_older_report_without_the_scores_interval_is_still_told() -> None:
    old = {key: value for key, value in reported([2, 8]).items() if not key.startswith("brier_l")}
    old.pop("brier_high")
    found = believed(old)
    assert found is not None
    assert found["caption"].startswith("Brier score 0.16 over 20 rows; always saying 50 % would have 0.25.")


def test_a_run_shows_it_and_says_it_in_json(nights) -> None:
    page = nights.client.get(f"/runs/{nights.ids[states.V2]}").text
    assert "What the value model is worth" in page
    assert page.count("<g class=") == 5
    assert "serving version" in page
    assert "Brier score" in page
