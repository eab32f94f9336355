import math

import pytest

from nightschool.valuation.clustered import mean_over, separate
from nightschool.valuation.likeness import rouge_l


def test_an_area_by_hand() -> None:
    # accepted 3 and 1, rejected 2 and 0: of four pairs three are in order
    found = separate([3, 1, 2, 0], [True, True, False, False], ["a", "b", "c", "d"], level=0.5)
    assert found.area.value == 0.75
    assert found.difference.value == pytest.approx(1.0)
    # with a tied row on either side the wins are [1, 1, .5], [0, 1, .5], [.5, .5, .5]: 5.5 of 9
    # rows off the mean: 2/9, -1/9, -1/9; squares add up to 6/81, times 3/2 over 9 rows squared, twice
    error = math.sqrt(2 * (6 / 81) * 1.5 / 9)
    # Student's t of one degree of freedom at 0.75 is tan(pi / 4) = 1
    assert (found.area.low, found.area.high) == pytest.approx((5.5 / 9 - error, 5.5 / 9 + error))
    # of the difference: each row's part is (value - mean) / 2 = 1/2; four squares of a quarter, times 4/3
    half = math.sqrt(4 * 0.25 * 4 / 3)
    assert (found.difference.low, found.difference.high) == pytest.approx((1 - half, 1 + half))
    assert (found.num_accepted, found.num_rejected, found.num_clusters) == (2, 2, 4)


def test_rows_of_one_cluster_move_together() -> None:
    apart = separate([3, 1, 2, 0], [True, True, False, False], ["a", "b", "c", "d"], level=0.5)
    paired = separate([3, 1, 2, 0], [True, True, False, False], ["a", "b", "a", "b"], level=0.5)
    # a cluster holds 2/9 and -1/9, or -1/9 and 2/9: products of -2/81, twice, times 4/3, doubled over 9 rows
    shared = 2 * (-4 / 81) * (4 / 3) / 9
    error = math.sqrt(2 * (6 / 81) * 1.5 / 9 + shared)
    assert paired.area.high - paired.area.low == pytest.approx(2 * error)
    assert paired.area.high - paired.area.low < apart.area.high - apart.area.low


def test_what_is_told_apart_without_an_error_is_not_certain() -> None:
    found = separate([1.0] * 8 + [0.0] * 8, [True] * 8 + [False] * 8, [str(n) for n in range(16)])
    assert found.area.value == 1.0
    assert 0.7 < found.area.low < 0.9
    nothing = separate([1.0] * 16, [True] * 8 + [False] * 8, [str(n) for n in range(16)])
    assert nothing.area.value == 0.5
    assert nothing.area.low <= 0.5 <= nothing.area.high


def test_a_mean_over_clusters() -> None:
    # clusters of sums -1 and 1 about the mean 1: variance (1 + 1) * 2 / 1 over 4 rows squared; t of one degree is 1
    found = mean_over([0.5, 0.5, 1.5, 1.5], ["a", "a", "b", "b"], level=0.5)
    assert (found.low, found.value, found.high) == pytest.approx((0.5, 1.0, 1.5))


def test_the_longest_common_subsequence() -> None:
    # "the cat sat" and "the dog sat": the, sat; 2 * 2 / 6
    assert rouge_l(["the", "cat", "sat"], ["the", "dog", "sat"]) == pytest.approx(2 / 3)
    # order counts: "a b" and "b a" share one
    assert rouge_l(["a", "b"], ["b", "a"]) == 0.5
    assert rouge_l(["same", "same"], ["same", "same"]) == 1.0
    assert rouge_l([], ["a"]) == 0.0
