"""A verdict's suites as interval rows: grouped by unit, one shared axis a group, margins on the side of the loss."""

from __future__ import annotations

from typing import Any

from nightschool.dashboard.formatting import interval, number
from nightschool.dashboard.intervals import BETTER, NEUTRAL, WORSE, axis, difference_scale, row, tick_labels
from nightschool.types import Json, Reading

TONES = {Reading.BETTER: BETTER, Reading.WORSE: WORSE, Reading.BEYOND: WORSE}
ICONS = {
    Reading.BETTER: "up",
    Reading.WORSE: "down",
    Reading.BEYOND: "down",
    Reading.NOT_WORSE: "square",
    Reading.WITHIN: "square",
    Reading.CANNOT_TELL: "question",
    Reading.NO_DATA: "open",
}
WIDEST = {"percent": 150.0, "points": 100.0}


def suite_groups(suites: list[Json]) -> list[Json]:
    """Groups in the order in which their unit first appears; rows keep the verdict's order."""
    units = list(dict.fromkeys(str(suite.get("unit", "")) for suite in suites))
    return [_group(unit, [suite for suite in suites if suite.get("unit", "") == unit]) for unit in units]


def _group(unit: str, suites: list[Json]) -> Json:
    reach = [edge for suite in suites for edge in _reach(suite)]
    scale = difference_scale(reach, WIDEST.get(unit))
    rows = []
    for suite in suites:
        reading = Reading(suite["reading"])
        known = suite.get("difference") is not None
        rows.append(
            {
                **suite,
                "numbers": _numbers(suite) if known else None,
                "levels": _levels(suite),
                "margin_text": _margin_text(suite),
                "tone": TONES.get(reading, NEUTRAL),
                "icon": ICONS[reading],
                "plot": row(
                    scale,
                    suite.get("difference"),
                    suite.get("low"),
                    suite.get("high"),
                    tone=TONES.get(reading, NEUTRAL),
                    solid=reading is not Reading.NO_DATA,
                    losses=losses(suite),
                ),
            }
        )
    return {"unit": unit, "rows": rows, "axis": axis(scale, tick_labels(scale))}


def losses(suite: Json) -> list[tuple[float, str]]:
    """Where the forbidden side begins, and which side it is."""
    margin = suite.get("margin")
    if margin is None:
        return []
    left, right = (-float(margin), "left"), (float(margin), "right")
    if suite.get("two_sided"):
        return [left, right]
    return [right] if suite.get("fewer_is_better") else [left]


def _reach(suite: Json) -> list[tuple[float | None, float | None, float | None]]:
    low, high = suite.get("low"), suite.get("high")
    return [(low, high, edge) for edge, _ in losses(suite)] or [(low, high, None)]


def _numbers(suite: Json) -> str:
    """The difference with the decimals of the gate's own sentence: two significant digits of its size."""
    size = abs(float(suite["difference"]))
    places = {True: (0, 1, 10), False: (2, 3, 0.1)}[suite.get("unit") in ("points", "percent")]
    decimals = places[0] if size >= places[2] else places[1]
    return interval(suite["difference"], suite.get("low"), suite.get("high"), sign=True, decimals=decimals)


def _levels(suite: Json) -> str | None:
    """`42 → 63`: the incumbent's level, then the candidate's."""
    before, after = suite.get("incumbent"), suite.get("candidate")
    if before is None or after is None:
        return None
    decimals = 0 if suite.get("unit") == "points" else None
    return f"{number(before, decimals)} → {number(after, decimals)}"


def _margin_text(suite: Json) -> str:
    margin: Any = suite.get("margin")
    if margin is None:
        return ""
    if suite.get("two_sided"):
        return f"±{number(margin)}"
    return number(margin if suite.get("fewer_is_better") else -margin, sign=True)
