"""Numbers, intervals, durations and times as the pages and the command line write them. Pure."""

from __future__ import annotations

import math
import re
import time
from datetime import UTC, datetime

MINUS = "−"
MISSING = "missing"
DAY_S = 86_400.0
DIGEST = re.compile(r"[0-9a-f]{32,}")
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def number(value: float | None, decimals: int | None = None, sign: bool = False) -> str:
    """`12,408`, `−3.1`, `12.4 M`; two significant digits below 1 unless `decimals` says otherwise."""
    if value is None or math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    if abs(value) >= 10_000_000:
        return _signed(f"{value / 1e6:,.1f} M", value, sign)
    if decimals is None:
        decimals = 0 if float(value).is_integer() else _decimals_of(abs(value))
    return _signed(f"{value:,.{decimals}f}", value, sign)


def interval_decimals(low: float, high: float) -> int:
    """As many decimals as the width of an interval deserves."""
    width = abs(high - low)
    if width >= 20:
        return 0
    return 1 if width >= 0.5 else 2 if width >= 0.05 else 3


def interval(
    estimate: float | None, low: float | None, high: float | None, sign: bool = False, decimals: int = -1
) -> str:
    """`79 [74, 84]`, with signs `+37 [+29, +45]`; `missing` where there is no estimate."""
    if estimate is None:
        return MISSING
    if low is None or high is None:
        return number(estimate, sign=sign)
    if decimals < 0:
        decimals = interval_decimals(low, high)
    one, two, three = (number(value, decimals, sign) for value in (estimate, low, high))
    return f"{one} [{two}, {three}]"


def share(estimate: float | None, low: float | None, high: float | None) -> str:
    """A share between 0 and 1 as a percentage with its interval: `79 [74, 84]`."""
    if estimate is None or low is None or high is None:
        return MISSING
    decimals = 0 if (high - low) >= 0.02 else 1
    return interval(100 * estimate, 100 * low, 100 * high, decimals=decimals)


def difference(estimate: float | None, low: float | None, high: float | None) -> str:
    """A difference of two shares in points: `+37 [+29, +45]`."""
    if estimate is None or low is None or high is None:
        return MISSING
    decimals = 0 if (high - low) >= 0.02 else 1
    return interval(100 * estimate, 100 * low, 100 * high, sign=True, decimals=decimals)


def percent(value: float | None) -> str:
    """`31 %`, one decimal below 10 where it says something, `< 1 %` never rounded to 0."""
    if value is None:
        return MISSING
    if 0 < value < 0.005:
        return "< 1 %"
    return f"{100 * value:.0f} %"


def probability(value: float | None) -> str:
    """One digit below 0.01, `< 0.0001` as the floor."""
    if value is None:
        return MISSING
    if value < 0.0001:
        return "< 0.0001"
    return f"{value:.1g}" if value < 0.01 else f"{value:.2f}"


def count(value: int, cap: int | None = None) -> str:
    """`12,408`, or `10,000+` where counting stopped at `cap`."""
    return f"{cap:,}+" if cap is not None and value > cap else number(value)


def plural(value: int, one: str, many: str | None = None) -> str:
    """`1 session`, `2 sessions`."""
    return f"{number(value)} {one if value == 1 else many or one + 's'}"


def duration(seconds: float | None) -> str:
    """`0.4 s`, `6 s`, `9 min 12 s`, `2 h 5 min`, `1 d 9 h`, `12 d`.

    Units: seconds.
    """
    if seconds is None:
        return MISSING
    seconds = max(0.0, seconds)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms" if seconds < 0.1 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        minutes, rest = divmod(whole, 60)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    if whole < DAY_S:
        hours, rest = divmod(whole // 60, 60)
        return f"{hours} h {rest} min" if rest else f"{hours} h"
    days, rest = divmod(whole // 3600, 24)
    return f"{days} d {rest} h" if rest and days < 7 else f"{days} d"


def relative(at: float | None, now: float) -> str:
    """`just now`, `2 h ago` up to 7 days, then `12 Nov`, with the year when it is another one."""
    if at is None:
        return MISSING
    ago = now - at
    if ago < -60:
        return clock(at)
    if ago < 5:
        return "just now"
    if ago < 60:
        return f"{ago:.0f} s ago"
    if ago < 3600:
        return f"{ago // 60:.0f} min ago"
    if ago < DAY_S:
        return f"{ago // 3600:.0f} h ago"
    if ago < 7 * DAY_S:
        return f"{ago // DAY_S:.0f} d ago"
    then = datetime.fromtimestamp(at).astimezone()
    year = "" if then.year == datetime.fromtimestamp(now).astimezone().year else f" {then.year}"
    return f"{then.day} {then:%b}{year}"


def later(seconds: float) -> str:
    """How long after its exchange a feedback came: `2 h later`, `at once` below 5 s."""
    if seconds < 5:
        return "at once"
    for size, unit in ((DAY_S, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} later"
    return f"{seconds:.0f} s later"


def clock(at: float | None) -> str:
    """Local time to the second with its zone: `12 Nov 2026, 07:12:04 UTC`."""
    if at is None:
        return MISSING
    then = datetime.fromtimestamp(at).astimezone()
    return f"{then.day} {then:%b %Y, %H:%M:%S} {time.strftime('%Z', time.localtime(at))}"


def iso(at: float | None) -> str | None:
    """UTC, ISO 8601, for `datetime` attributes and JSON."""
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def size(num_bytes: int) -> str:
    """`812 B`, `1.5 KiB`, `3.2 MiB`."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def short_id(text: str) -> str:
    """An id short enough for a row. A digest keeps both ends; a UUIDv7 its tail, since its head is the clock."""
    if UUID.fullmatch(text):
        return f"…{text[-8:]}"
    if DIGEST.fullmatch(text):
        return f"{text[:4]}…{text[-2:]}"
    return text if len(text) <= 24 else f"{text[:12]}…{text[-8:]}"


def _decimals_of(value: float) -> int:
    """Decimals for two significant digits."""
    if value == 0:
        return 0
    if value >= 100:
        return 0
    return min(6, max(1, 1 - math.floor(math.log10(value))))


def _signed(text: str, value: float, sign: bool) -> str:
    body = text.lstrip("-")
    if not any(digit in body for digit in "123456789"):
        return body  # a rounded zero carries no sign
    if value < 0:
        return MINUS + body
    return f"+{body}" if sign else body
