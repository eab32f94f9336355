from dataclasses import replace

import pytest

from nightschool.errors import TooLittleDataError
from nightschool.gate.appraisal import appraise
from nightschool.objectives.loss import Material
from nightschool.types import Sample

ROW = Sample("s", (1, 2, 3), (False, True, True), (False, True, True))


def rows(*gained: tuple[float, float]) -> tuple[list, list]:
    """(policy, base) in which the two tokens of each row gained so much."""
    return [(None, -1 + a, -1 + b) for a, b in gained], [(None, -1.0, -1.0) for _ in gained]


def test_demonstrations_are_told_by_nats_per_token():
    # means 0.5 and 1.5: mean 1, deviation 0.7071, error 0.5, t(1, 0.975) = 12.7062: 1 +- 6.3531
    score = appraise(Material.DEMONSTRATIONS, [ROW, ROW], *rows((0.0, 1.0), (1.0, 2.0)))
    assert (score.value, score.low, score.high) == pytest.approx((1.0, -5.3531, 7.3531), abs=1e-4)
    assert score.num_rows == 2


def test_pairs_are_told_by_the_share_that_is_ranked_right():
    samples = [
        replace(ROW, group_id=str(pair), annotations={"preferred": float(side)}) for pair in range(4) for side in (1, 0)
    ]
    # gains better / worse: 2/0 right, 0/1 wrong, 1/1 tie, 3/2 right: 2.5 of 4; Wilson's interval of 0.625 at n = 4
    score = appraise(Material.PAIRS, samples, *rows((1, 1), (0, 0), (0, 0), (1, 0), (1, 0), (0, 1), (3, 0), (2, 0)))
    assert score.value == pytest.approx(62.5)
    assert (score.low, score.high) == pytest.approx((21.6, 90.9), abs=0.5)
    assert score.num_rows == 4


def test_judged_replies_are_told_by_how_often_a_good_one_gained_more():
    samples = [replace(ROW, reward=reward) for reward in (1.0, 1.0, 0.0, 0.0)]
    # good 3, 1; bad 2, 0: above in 3 of 4
    score = appraise(Material.JUDGED, samples, *rows((3, 0), (1, 0), (2, 0), (0, 0)))
    assert score.value == pytest.approx(75)
    assert score.low <= 75 <= score.high
    with pytest.raises(TooLittleDataError):
        appraise(Material.JUDGED, samples[:2], *rows((3, 0), (1, 0)))
