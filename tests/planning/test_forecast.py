"""Forecasts: more work takes more, what does not fit is refused with values that would."""

from dataclasses import replace

import pytest

from nightschool.errors import InputError
from nightschool.models.shapes import find_shape
from nightschool.planning.devices import CARDS, Device, find_device
from nightschool.planning.forecast import Setting, forecast, ideal_s, memory_of, with_budget
from nightschool.planning.memory import Largest
from nightschool.planning.operations import Tokens
from nightschool.planning.remedies import remedies
from nightschool.planning.speed import CARD, FITS, Range, spread_of
from nightschool.planning.work import Work

H100 = next(card for card in CARDS if card.name == "h100")
SETTING = Setting(find_shape("7b"), H100, "bfloat16", 16, 4096)
WORK = Work(
    steps=100,
    trained=Tokens(400_000, 200_000_000, 100_000, 100),
    read=Tokens(),
    between=Tokens(400_000, 200_000_000, 100_000, 100),
    padded=800_000,
    unique=400_000,
    largest=Largest(4096, 1000),
    longest=1000,
)


def test_time_follows_the_forecast_of_its_parts():
    # a device of 1 Gop/s and 1 GB/s, and a pass of nothing but 10 tokens without context
    slow = Device("slow", "slow", 1e12, 1e9, 1e9, 1e9)
    shape = find_shape("135m")
    setting = Setting(shape, slow, "bfloat16", 16, 4096)
    one, two = (ideal_s(setting, Tokens(num, 10 * num, passes=0), Tokens()) for num in (10, 20))
    assert two == pytest.approx(2 * one)
    faster = replace(setting, device=replace(slow, bfloat16=2e9, bytes_per_s=2e9))
    assert ideal_s(faster, Tokens(10, 100), Tokens()) == pytest.approx(one / 2)
    assert ideal_s(setting, Tokens(passes=1), Tokens()) == pytest.approx(30 * 1.5e-3)  # 30 blocks to start


def test_a_processor_starts_a_block_for_every_few_tokens():
    endless = Device("endless", "endless", 1e12, 1e30, 1e30, 1e30, measured=True, is_cpu=True)
    setting = Setting(find_shape("135m"), endless, "bfloat16", 16, 4096)
    assert ideal_s(setting, Tokens(512, 512), Tokens()) == pytest.approx(30 * 2 * 1.3e-3)


@pytest.mark.parametrize(
    "more",
    [
        {"trained": WORK.trained.times(2)},
        {"between": WORK.between.times(2)},
        {"read": Tokens(1000, 1000, 0, 1)},
        {"drawn": Tokens(1000, 1000, 1000), "decode_steps": 100.0},
    ],
)
def test_more_work_takes_longer(more):
    assert forecast(SETTING, replace(WORK, **more)).seconds.middle > forecast(SETTING, WORK).seconds.middle


def test_bigger_takes_more():
    sizes = [replace(SETTING, shape=find_shape(name)) for name in ("0.5b", "1.5b", "3b", "7b", "14b", "32b")]
    planned = [forecast(setting, WORK) for setting in sizes]
    seconds, needed = [one.seconds.middle for one in planned], [one.memory.total for one in planned]
    assert seconds == sorted(seconds)
    assert needed == sorted(needed)
    ranks = [memory_of(replace(SETTING, rank=rank), WORK.largest).total for rank in (4, 16, 64)]
    assert ranks == sorted(ranks)
    budgets = [memory_of(SETTING, with_budget(WORK.largest, budget, 1000)).total for budget in (1024, 2048, 4096)]
    assert budgets == sorted(budgets)
    assert memory_of(replace(SETTING, dtype="float32"), WORK.largest).total > memory_of(SETTING, WORK.largest).total
    assert forecast(SETTING, WORK).checkpointed_bytes < forecast(SETTING, WORK).memory.activations


def test_a_range_and_a_price():
    planned = forecast(SETTING, WORK, price=2.0)
    assert planned.seconds.low < planned.seconds.middle < planned.seconds.high
    assert planned.seconds.middle == pytest.approx(CARD.middle * planned.ideal_s)
    assert planned.cost == planned.seconds.times(2.0 / 3600)
    assert forecast(SETTING, WORK).cost is None, "no price is made up"
    assert forecast(SETTING, WORK, factor=Range(1, 2, 3)).seconds.middle == pytest.approx(2 * planned.ideal_s)
    assert 0 < planned.utilization.low < planned.utilization.high < 1


def test_what_does_not_fit_is_told_what_would():
    big = replace(SETTING, dtype="float32", rank=64)
    planned = forecast(replace(big, device=next(card for card in CARDS if card.name == "rtx4090")), WORK)
    assert not planned.fits
    found = {one.knob: one.value for one in remedies(planned)}
    assert set(found) == {"model", "device"}  # 30 GB of weights: no budget and no rank helps
    # 4 bytes for each of 7.6e9 weights are 30e9, the adapter 4.5e9, activations 7.9e9: more than 40 GiB can give
    assert 0.95 * 43e9 < planned.memory.total < 0.95 * 85e9
    assert found["device"] == "h100"
    for one in remedies(planned):
        assert one.needed_bytes <= planned.memory.total


@pytest.mark.parametrize("knob", ["token_budget", "rank", "dtype"])
def test_a_remedy_fits_and_the_next_step_does_not(knob):
    """Each knob is tried on a card just too small for the run."""
    setting = replace(SETTING, rank=64, dtype="float32" if knob == "dtype" else "bfloat16")
    needed = memory_of(setting, WORK.largest).total
    setting = replace(setting, device=replace(H100, memory_bytes=0.999 * needed / FITS))
    planned = forecast(setting, WORK)
    assert not planned.fits
    value = next(one.value for one in remedies(planned) if one.knob == knob)
    changed = replace(setting, **{knob: value if knob == "dtype" else int(value)})
    largest = with_budget(WORK.largest, int(value), WORK.longest) if knob == "token_budget" else WORK.largest
    assert memory_of(changed, largest).total <= FITS * setting.device.memory_bytes
    if knob == "token_budget":
        assert WORK.longest <= int(value) < 4096
    if knob == "rank":
        assert value == "32"


def test_a_budget_below_the_longest_sequence_is_no_remedy():
    setting = replace(SETTING, device=replace(H100, memory_bytes=18e9))
    assert "token_budget" not in {one.knob for one in remedies(forecast(setting, replace(WORK, longest=4096)))}


def test_the_next_ratio_after_a_few():
    assert spread_of([1.0, 1.1]) is None
    # logs −ln 2, 0, ln 2: mean 0, deviation ln 2; t(0.9, 2) = 1.8856; reach 1.8856 x 0.6931 x sqrt(4/3) = 1.5092
    found = spread_of([0.5, 1.0, 2.0])
    assert found is not None
    assert (found.middle, found.high) == (pytest.approx(1.0), pytest.approx(4.5232, rel=1e-3))
    assert found.low == pytest.approx(1 / found.high)


def test_devices_by_name():
    assert find_device("H100", "auto") == (H100, "bfloat16")
    assert find_device("l4", "float32")[1] == "float32"
    with pytest.raises(InputError, match="'tpu'"):
        find_device("tpu", "auto")
