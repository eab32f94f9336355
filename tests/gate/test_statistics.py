import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightschool.errors import TooLittleDataError
from nightschool.gate import statistics as s


def test_paired_by_hand():
    # mean 2, s = 1, error 1/sqrt(3) = 0.57735, t(0.95, 2) = 2.919986 (any table), half width 1.685855
    found = s.paired([1.0, 2.0, 3.0])
    assert (found.difference, found.deviation, found.degrees_of_freedom) == (2.0, 1.0, 2)
    assert found.critical == pytest.approx(2.919986, abs=1e-6)
    assert (found.low, found.high) == pytest.approx((0.314145, 3.685855), abs=1e-6)


@pytest.mark.parametrize("interval", [s.paired, s.paired_rates])
@pytest.mark.parametrize("values", [[], [0.5]])
def test_one_cluster_has_no_standard_error(interval, values):
    with pytest.raises(TooLittleDataError):
        interval(values)


@pytest.mark.parametrize("interval", [s.paired, s.paired_rates])
def test_a_missing_value_is_not_a_number_to_average(interval):
    with pytest.raises(ValueError, match="missing"):
        interval([1.0, math.nan])


def test_rates_without_one_difference_are_not_certain():
    # sum 0, sum of squares 0 + 1, so s = sqrt(1/121) and error = s/sqrt(122); t(0.95, 119) = 1.657759:
    # half width 1.657759 / sqrt(121 * 122) = 0.013644, about 3/120 rule of three over two sides
    found = s.paired_rates([0.0] * 120)
    assert (found.low, found.high) == pytest.approx((-0.013644, 0.013644), abs=1e-6)
    assert s.paired([0.0] * 120).high == 0.0


def test_rates_equal_agresti_and_min_up_to_the_usual_n_over_n_minus_one():
    # 12 customers gained, 5 lost of 100: their table with a half in each cell has b* = 5.5, c* = 12.5, N* = 102
    differences = [1.0] * 12 + [-1.0] * 5 + [0.0] * 83
    theirs = math.sqrt(18 - 7**2 / 102) / 102
    found = s.paired_rates(differences)
    assert found.center == pytest.approx(7 / 102)
    assert found.difference == pytest.approx(0.07)
    assert found.standard_error == pytest.approx(theirs * math.sqrt(102 / 101))


@pytest.mark.parametrize(("gain", "loss"), [(0.01, 0.01), (0.05, 0.01), (0.1, 0.1), (0.3, 0.2)])
def test_rate_intervals_cover_the_truth_also_where_differences_are_rare(gain, loss):
    draws = np.random.default_rng(1).choice([1.0, -1.0, 0.0], p=[gain, loss, 1 - gain - loss], size=(2000, 120))
    wrong = [row.low > gain - loss for row in map(s.paired_rates, draws)]
    # one-sided 5 %; four standard errors of the simulation are 0.02
    assert np.mean(wrong) < 0.07


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_against_newcombe_1998_table_1(successes, n, low, high):
    assert s.wilson(successes, n, 0.025) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(
    ("first", "second", "low", "high"),
    [
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((6, 7), (2, 7), 0.0582, 0.8062),
        ((5, 56), (0, 29), -0.0381, 0.1926),
        ((10, 10), (0, 10), 0.6075, 1.0),
    ],
)
def test_newcombe_against_his_table_2(first, second, low, high):
    assert s.newcombe(first, second, 0.025) == pytest.approx((low, high), abs=5e-5)


def test_no_rate_without_cases():
    for successes, n in [(0, 0), (3, 2), (-1, 2)]:
        with pytest.raises(ValueError, match="no rate"):
            s.wilson(successes, n)


def test_needed_clusters_against_published_tables():
    # one-sample t, effect 0.5 deviations, power 0.8 (Cohen 1988; G*Power): 27 one-sided, 34 two-sided
    assert s.needed_clusters(0.5, 1.0, 0.05) == 27
    assert s.needed_clusters(0.5, 1.0, 0.025) == 34


def test_power_matches_simulation():
    draws = np.random.default_rng(2).normal(0.2, 0.6, size=(4000, 60))
    seen = np.mean([s.paired(row).low > 0 for row in draws])
    assert s.power(0.2, 0.6, 60) == pytest.approx(seen, abs=0.02)


@given(st.floats(0.01, 50), st.integers(8, 500), st.floats(0.001, 0.2))
def test_smallest_effect_needs_just_that_many(deviation, n, alpha):
    effect = s.smallest_effect(deviation, n, alpha)
    assert s.power(effect, deviation, n, alpha) == pytest.approx(0.8, abs=1e-6)
    assert abs(s.needed_clusters(effect, deviation, alpha) - n) <= max(1, n // 100)


def test_customers_alike_in_both_arms_differ_less():
    # p = 0.5 twice: variance 0.5 (1 - correlation)
    assert s.paired_deviation(0.5, 0.5, 0.0) == pytest.approx(math.sqrt(0.5))
    assert s.paired_deviation(0.5, 0.5, 0.25) == pytest.approx(math.sqrt(0.375))
    # the exam of 80 that docs quote: 20 points with about 0.9, 8 with about a third
    spread = s.paired_deviation(0.5, 0.5, 0.25)
    assert s.power(0.20, spread, 80) == pytest.approx(0.90, abs=0.02)
    assert s.power(0.08, spread, 80) == pytest.approx(0.32, abs=0.02)


@pytest.mark.parametrize(("exact", "said"), [(8.2, 9), (100, 100), (241, 250), (1001, 1100), (1100, 1100)])
def test_forecasts_have_two_digits(exact, said):
    assert s.about(exact) == said
