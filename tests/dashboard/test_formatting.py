"""Numbers, intervals, durations and times in the words of the design."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightschool.dashboard import formatting as f


def test_an_interval_is_written_with_its_ends() -> None:
    # 190 of 240 is 79.17 %; Wilson's ends are given here by hand: 73.6 and 83.8
    assert f.share(0.7917, 0.736, 0.838) == "79 [74, 84]"
    assert f.difference(0.37, 0.29, 0.45) == "+37 [+29, +45]"
    assert f.difference(-0.031, -0.05, -0.012) == "−3 [−5, −1]"


def test_decimals_are_as_many_as_the_width_deserves() -> None:
    # widths: 24 points none, 1.4 points one, 0.04 three
    assert f.interval(4.0, -8.0, 16.0, sign=True) == "+4 [−8, +16]"
    assert f.interval(0.4, -0.3, 1.1, sign=True) == "+0.4 [−0.3, +1.1]"
    assert f.interval(0.004, -0.016, 0.024, sign=True) == "+0.004 [−0.016, +0.024]"


def test_minus_is_a_minus_and_a_rounded_zero_has_no_sign() -> None:
    assert f.number(-3.1, 1) == "−3.1"
    assert f.number(-0.02, 1) == "0.0"
    assert f.number(0.02, 0, sign=True) == "0"
    assert f.number(12408) == "12,408"
    assert f.number(12_400_000) == "12.4 M"
    assert f.number(0.0312) == "0.031"
    assert f.number(1020.4) == "1,020"


def test_missing_is_a_word_and_never_zero() -> None:
    assert f.number(None) == f.number(float("nan")) == "missing"
    assert f.interval(None, 1, 2) == f.share(None, None, None) == f.duration(None) == f.percent(None) == "missing"


def test_a_small_share_is_never_rounded_to_nothing() -> None:
    assert f.percent(0.004) == "< 1 %"
    assert f.percent(0.0) == "0 %"
    assert f.percent(0.31) == "31 %"
    assert f.probability(0.00002) == "< 0.0001"
    assert f.probability(0.0042) == "0.004"
    assert f.probability(0.314) == "0.31"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.05, "50 ms"),
        (0.44, "0.4 s"),
        (6, "6 s"),
        (552, "9 min 12 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (118_800, "1 d 9 h"),
        (12 * 86_400, "12 d"),
        (59.7, "1 min"),
        (3599.9, "1 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert f.duration(seconds) == text


def test_times_are_relative_for_a_week() -> None:
    now = time.mktime((2026, 11, 30, 12, 0, 0, 0, 0, -1))
    assert f.relative(now - 2, now) == "just now"
    assert f.relative(now - 2 * 3600, now) == "2 h ago"
    assert f.relative(now - 6 * 86_400, now) == "6 d ago"
    assert f.relative(now - 18 * 86_400, now) == "12 Nov"
    assert f.relative(now - 365 * 86_400, now) == "30 Nov 2025"
    assert f.relative(None, now) == "missing"


def test_json_times_are_utc() -> None:
    assert f.iso(0.5) == "1970-01-01T00:00:00.500Z"


def test_ids_are_short_where_they_differ() -> None:
    # a UUIDv7 begins with the clock, which neighbours share
    assert f.short_id("01a22c0b-1e16-7eda-b141-3a69b357a86d") == "…b357a86d"
    assert f.short_id("80c2" + "0" * 58 + "1f") == "80c2…1f"
    assert f.short_id("ticket-5521") == "ticket-5521"


def test_sizes_are_binary() -> None:
    assert [f.size(n) for n in (812, 1536, 3_355_443)] == ["812 B", "1.5 KiB", "3.2 MiB"]


@given(st.floats(allow_nan=True, allow_infinity=True), st.integers(0, 4), st.booleans())
def test_no_number_ever_shows_a_hyphen(value: float, decimals: int, sign: bool) -> None:
    assert "-" not in f.number(value, decimals, sign)
