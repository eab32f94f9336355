"""Curves: what the browser draws, the line that stands in for it without scripts, and the sentence beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from markupsafe import Markup

from nightschool.dashboard.formatting import number

MAX_POINTS = 1000  # never more than two a pixel reach the browser

Points = list[tuple[int, float | None]]


@dataclass(frozen=True, slots=True)
class Thinned:
    """Columns of one series. `low` and `high` are None while every point is drawn as it was measured."""

    steps: list[int]
    mid: list[float | None]
    low: list[float | None] | None
    high: list[float | None] | None
    per_point: int


def thin(points: Points, limit: int = MAX_POINTS) -> Thinned:
    """At most `limit` points: the mean of equal runs of steps, with their minimum and maximum.

    A missing value stays a gap; a run of only missing values is one.
    """
    if len(points) <= limit:
        return Thinned([step for step, _ in points], [finite(value) for _, value in points], None, None, 1)
    per_point = math.ceil(len(points) / limit)
    steps: list[int] = []
    mid: list[float | None] = []
    low: list[float | None] = []
    high: list[float | None] = []
    for start in range(0, len(points), per_point):
        part = points[start : start + per_point]
        known = [value for _, value in part if value is not None and math.isfinite(value)]
        steps.append(part[len(part) // 2][0])
        mid.append(sum(known) / len(known) if known else None)
        low.append(min(known) if known else None)
        high.append(max(known) if known else None)
    return Thinned(steps, mid, low, high, per_point)


def finite(value: float | None) -> float | None:
    """NaN and infinities are missing: a curve has a gap there."""
    return value if value is not None and math.isfinite(value) else None


def caption(label: str, points: Points) -> str:
    """`Loss fell from 1.2 to 0.41 over 28 steps.`"""
    known = [(step, value) for step, value in points if value is not None and math.isfinite(value)]
    if not known:
        return f"{label}: missing in all {len(points)} steps."
    (first_step, first), (_, last) = known[0], known[-1]
    missing = len(points) - len(known)
    gap = f"; missing in {missing}" if missing else ""
    if len(known) == 1:
        return f"{label}: {number(first)} at step {first_step}{gap}."
    if number(first) == number(last):
        return f"{label} stayed at {number(last)} over {len(points)} steps{gap}."
    verb = "rose" if last > first else "fell"
    return f"{label} {verb} from {number(first)} to {number(last)} over {len(points)} steps{gap}."


def stand_in(lines: list[tuple[str, Points]], marks: list[float]) -> Markup:
    """The curve for a page without scripts: lines only, scaled to its box; labels stand outside as HTML."""
    values = [value for _, points in lines for _, value in points if value is not None and math.isfinite(value)]
    steps = [step for _, points in lines for step, _ in points]
    if not values or not steps:
        return Markup("")
    bottom, top = min([*values, *marks]), max([*values, *marks])
    span_y, span_x = (top - bottom) or 1.0, (max(steps) - min(steps)) or 1
    parts: list[Markup] = []
    for value in marks:
        y = _place(value, bottom, span_y)
        parts.append(Markup('<line class="stop" x1="0" y1="{}" x2="1000" y2="{}"/>').format(y, y))
    for tone, points in lines:
        for piece in _pieces(points):
            if len(piece) == 1:  # a lone value between gaps is a short stroke
                piece = [(piece[0][0] - span_x / 200, piece[0][1]), (piece[0][0] + span_x / 200, piece[0][1])]
            path = " ".join(
                f"{1000 * (step - min(steps)) / span_x:.1f},{_place(value, bottom, span_y)}" for step, value in piece
            )
            parts.append(Markup('<polyline class="{}" points="{}"/>').format(tone, path))
    return Markup(
        '<svg class="standin" viewBox="0 0 1000 100" preserveAspectRatio="none" aria-hidden="true">{}</svg>'
    ).format(Markup("").join(parts))


def sparkline(counts: list[int]) -> Markup:
    """96 × 20, one line, the last value as a dot. The same counts stand beside it as a number."""
    top = max([*counts, 1])
    last = len(counts) - 1
    places = [(2 + 90 * index / max(last, 1), 17 - 14 * value / top) for index, value in enumerate(counts)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    x, y = places[-1]
    return Markup(
        '<svg class="spark" width="96" height="20" viewBox="0 0 96 20" aria-hidden="true">'
        '<polyline points="{}"/><circle cx="{}" cy="{}" r="2"/></svg>'
    ).format(path, f"{x:.1f}", f"{y:.1f}")


def _pieces(points: Points) -> list[list[tuple[float, float]]]:
    """Runs of known values: a gap is never joined."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for step, value in points:
        known = finite(value)
        if known is None:
            pieces.append([])
        else:
            pieces[-1].append((step, known))
    return [piece for piece in pieces if piece]


def _place(value: float, bottom: float, span: float) -> str:
    return f"{96 - 92 * (value - bottom) / span:.1f}"
