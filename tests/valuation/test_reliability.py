from __future__ import annotations

import numpy as np
import pytest

from nightschool.errors import RefusedError
from nightschool.valuation.reliability import Outcomes, earned_margin, notes, report, require_calibrated


def outcomes(targets, weights=None, principals=None, slices=()) -> Outcomes:
    targets = np.asarray(targets, dtype=float)
    owners = [str(row) for row in range(len(targets))] if principals is None else principals
    return Outcomes(targets, np.ones(len(targets)) if weights is None else np.asarray(weights), owners, slices)


def rated(shares: list[float], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Of each predicted rate `count` rows, of which exactly that share came true."""
    p = np.repeat(shares, count)
    y = np.concatenate([np.arange(count) < round(share * count) for share in shares]).astype(float)
    return p, y


def test_brier_and_reliability() -> None:
    # predictions 0.9, 0.6, 0.2 for 1, 0, 0: (0.01 + 0.36 + 0.04) / 3 = 0.136667
    found = report(np.array([0.9, 0.6, 0.2]), outcomes([1, 0, 0]))
    assert found["brier"] == pytest.approx(0.136667, abs=1e-6)
    assert found["log_loss"] == pytest.approx(0.414932, abs=1e-6)  # -(log .9 + log .4 + log .8) / 3
    assert found["brier_of_mean"] == pytest.approx(2 / 9)
    # its squares lie -.126667, .223333, -.096667 off: sqrt(3 / 2 * .075267) / 3 = .112002, times 1.96
    assert found["brier_low"] == 0.0
    assert found["brier_high"] == pytest.approx(0.136667 + 1.959964 * 0.112002, abs=1e-5)
    assert [row["observed"] for row in found["reliability"]] == [0.0, 0.0, 1.0]
    # gaps 0.2, 0.6, -0.1, one row each
    assert found["calibration_error"] == pytest.approx(0.3)


def test_intervals_by_hand() -> None:
    # 20 rows at 0.5, 16 came true; se = sqrt(20 * 0.25) / 20 = 0.1118 by the predicted rate, by the rows
    # sqrt(20 / 19 * 20 * 0.16) / 20 = 0.0918: the larger counts. 0.8 +- 1.96 * 0.1118
    found = report(np.full(20, 0.5), outcomes(np.tile([1, 1, 1, 1, 0], 4)))
    (part,) = found["reliability"]
    assert (part["rows"], part["observed"]) == (20, pytest.approx(0.8))
    assert part["error"] == pytest.approx(0.111803, abs=1e-6)
    assert (part["low"], part["high"]) == (pytest.approx(0.580869, abs=1e-5), 1.0)
    assert found["calibration_error"] == pytest.approx(0.3)


def test_one_loud_principal_is_one_observation() -> None:
    # 20 rows of two principals whose gaps are -0.5 and +0.5: sums -5 and 5, sqrt(2 * 50) / 20
    found = report(np.full(20, 0.5), outcomes(np.repeat([1, 0], 10), principals=["a"] * 10 + ["b"] * 10))
    assert found["reliability"][0]["error"] == pytest.approx(0.5)
    loud = report(np.repeat([0.9, 0.6], 10), outcomes([1] * 20, principals=["a"] * 10 + ["b"] * 10))
    # squares .01 and .16, mean .085: sums -.75 and .75, sqrt(2 * 1.125) / 20 = .075, however many rows there are
    assert loud["brier_high"] == pytest.approx(0.085 + 1.959964 * 0.075, abs=1e-6)


def test_equal_predictions_are_never_cut_apart() -> None:
    """However the rows are ordered: outcomes that come in runs would look like bins that are wrong."""
    found = report(np.repeat([0.5, 0.25], [150, 50]), outcomes([0] * 75 + [1] * 75 + [1, 0, 0, 0, 0] * 10))
    assert [part["rows"] for part in found["reliability"]] == [50, 150]
    assert [part["gap"] for part in found["reliability"]] == pytest.approx([0.05, 0.0])


def test_weights_count_in_every_figure_and_rows_of_none_nowhere() -> None:
    p, y = np.array([0.5, 0.5, 0.9]), [1, 0, 0]
    found = report(p, outcomes(y, [3.0, 1.0, 0.0], slices=["x", "x", "gone"]))
    assert found["mean"] == 0.75
    assert sum(part["rows"] for part in found["reliability"]) == 2
    assert found["slices"].keys() == {"x"}
    assert found["slices"]["x"]["gap"] == pytest.approx(-0.25)


def test_a_model_that_is_surely_off_is_refused_with_its_figures() -> None:
    # 60 rows: says 0.5 where 0.8 came true; 0.3 - 1.96 * sqrt(60 * 0.25) / 60 = 0.173 > 0.10
    with pytest.raises(RefusedError, match=r"bin 1 of 1 it says 0.50 and 0.80 came true, of 60 rows") as refused:
        require_calibrated(report(np.full(60, 0.5), outcomes(np.tile([1, 1, 1, 1, 0], 12))), "model")
    assert "1.96 standard errors of 0.065" in refused.value.why
    # 20 rows: the error is 0.112, and 0.3 - 1.96 * 0.112 = 0.081 is no proof
    require_calibrated(report(np.full(20, 0.5), outcomes(np.tile([1, 1, 1, 1, 0], 4))), "model")


def test_a_slice_can_be_off_where_the_whole_is_right() -> None:
    p, y = np.full(600, 0.5), np.tile([1, 1, 1, 1, 0, 0, 0, 0, 0, 1], 60)
    require_calibrated(report(p, outcomes(y)), "model")
    slices = ["v1" if good else "v2" for good in y]
    with pytest.raises(RefusedError, match="slice v"):
        require_calibrated(report(p, outcomes(y, slices=slices)), "model")


def test_outcomes_drawn_at_the_predicted_rates_are_hardly_ever_refused() -> None:
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(200):
        p = rng.uniform(0.05, 0.95, 200)
        found = report(p, outcomes(rng.random(200) < p, slices=["a", "b"] * 100))
        try:
            require_calibrated(found, "model")
        except RefusedError:
            refused += 1
    assert refused <= 2  # the gap has to exceed 0.10 as well, beyond the 5 % of the test


def test_the_margin_is_earned_where_every_part_is_known_to_be_close() -> None:
    shares = [0.1, 0.3, 0.5, 0.7, 0.9]
    # largest error at 0.5: 1.2816 * 0.5 / sqrt(count) < 0.05 from count = 165 on
    p, y = rated(shares, 200)
    found = report(p, outcomes(y))
    assert earned_margin(found) == 0.0
    assert notes(p, p, found)[0] == {"p_hat": 0.1, "p_lo": 0.1, "margin": 0.0}
    p, y = rated(shares, 100)
    found = report(p, outcomes(y))
    assert found["calibration_error"] == pytest.approx(0.0, abs=1e-12)
    assert earned_margin(found) is None, "nothing is off, but it is not known well enough"
    assert notes(p, p, found)[0] == {"p_hat": 0.1, "p_lo": 0.1}
    p, y = rated(shares, 200)
    late = ["late" if row % 50 == 0 else "rest" for row in range(1000)]
    assert earned_margin(report(p, outcomes(y, slices=late))) is None  # 20 rows of a slice are too few
