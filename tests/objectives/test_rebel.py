from __future__ import annotations

from dataclasses import replace

import pytest
from loss_batches import agrees_with_finite_differences, of_log_ratios, row, slopes

from nightschool.errors import InputError, RefusedError
from nightschool.objectives.rebel import REBEL, RebelRule
from nightschool.training.losses.log_ratio import rebel
from nightschool.types import Sample

ADVANTAGE = [0.5, -0.5]  # rewards 1 and 0, less their mean


@pytest.mark.parametrize(("eta", "expected"), [(1.0, 4.0), (10.0, 0.49)])
def test_golden_g6b(eta: float, expected: float) -> None:
    # LR 2 and -1, r 1 and 0: (3 - 1)^2 and (0.3 - 1)^2
    for order in ([0, 1], [1, 0]):
        ratios, advantage = [2.0, -1.0], ADVANTAGE
        batch = of_log_ratios([ratios[i] for i in order], [0, 0], advantage=[advantage[i] for i in order])
        assert rebel(batch, eta).item() == pytest.approx(expected, abs=1e-5)


def test_the_better_reply_gains() -> None:
    batch = of_log_ratios([0.0, 0.0, 0.0, 0.0], [0, 1, 1, 0], advantage=[0.5, 0.0, 0.0, -0.5])
    # 2 / eta * (0 - 1), over 2 pairs; a pair of equal rewards stands still
    assert slopes(rebel(batch), batch) == pytest.approx([-1.0, 0.0, 0.0, 1.0])
    assert agrees_with_finite_differences(rebel, batch)


def test_a_pair_weighs_what_its_rows_weigh_on_average() -> None:
    batch = of_log_ratios([2.0, -1.0, 0.0, 0.0], [0, 0, 1, 1], advantage=[*ADVANTAGE, *ADVANTAGE], weights=[1, 0, 2, 2])
    assert rebel(batch).item() == pytest.approx((0.5 * 4 + 2 * 1) / 2)


def test_a_batch_holds_whole_pairs() -> None:
    for groups in ([0, 1], [-1, -1], None):
        with pytest.raises(InputError, match="group of two"):
            rebel(of_log_ratios([0.0, 0.0], groups, advantage=ADVANTAGE))


def pair(*rewards: float) -> list[Sample]:
    return [replace(row(str(i), (1, 2, 10 + i), reward=reward), group_id="p") for i, reward in enumerate(rewards)]


def test_values_cancel() -> None:
    good, bad = REBEL.annotate(pair(1.0, 0.0), RebelRule())
    assert (good.annotations["advantage"], bad.annotations["advantage"]) == (0.5, -0.5)
    assert REBEL.loss(RebelRule(eta=2.0)).settings == {"eta": 2.0}
    assert REBEL.anchored


def test_what_is_no_pair_is_refused() -> None:
    one, two = pair(1.0, 0.0)
    for broken in ([one], [one, two, replace(two, id="2")], [one, replace(two, group_id=None)]):
        with pytest.raises(RefusedError, match="in pairs"):
            REBEL.annotate(broken, RebelRule())
    with pytest.raises(RefusedError, match="one request"):
        REBEL.annotate([one, replace(two, token_ids=(1, 9, 11))], RebelRule())
    with pytest.raises(RefusedError, match="above zero"):
        REBEL.annotate([one, two], RebelRule(eta=0.0))
