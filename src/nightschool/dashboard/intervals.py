"""Interval rows: geometry in percent of a plot cell, drawn as SVG without a viewBox so that nothing stretches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from nightschool.dashboard.formatting import number

INSET = 3.0  # percent left free on both sides: dots, caps and end labels stay inside the cell
BETTER, WORSE, NEUTRAL = "better", "worse", "neutral"


@dataclass(frozen=True, slots=True)
class Scale:
    """A shared axis. `ticks` are drawn in every row and labelled once, in the head of the table."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def x(self, value: float) -> float:
        """Percent of the cell; values outside lie on the edge."""
        inside = min(max(value, self.low), self.high)
        return INSET + (100 - 2 * INSET) * (inside - self.low) / (self.high - self.low)

    def beyond(self, value: float) -> bool:
        return value < self.low or value > self.high


SHARE = Scale(0.0, 100.0, (0.0, 25.0, 50.0, 75.0, 100.0))


def difference_scale(rows: list[tuple[float | None, float | None, float | None]], widest: float | None = None) -> Scale:
    """A scale around 0 that holds all intervals and margins of `rows` (low, high, margin), with round ticks.

    `widest` bounds it on both sides; what lies beyond gets an arrow.
    """
    reach_low, reach_high = -1e-9, 1e-9
    for low, high, margin in rows:
        for value in (low, high, margin):
            if value is not None and math.isfinite(value):
                reach_low, reach_high = min(reach_low, value), max(reach_high, value)
    span = max(reach_high - reach_low, 1e-6)
    low_edge, high_edge = reach_low - 0.1 * span, reach_high + 0.1 * span
    if widest is not None:
        low_edge, high_edge = max(low_edge, -widest), min(high_edge, widest)
    step = _round_step((high_edge - low_edge) / 6)
    first, last = math.ceil(low_edge / step), math.floor(high_edge / step)
    return Scale(low_edge, high_edge, tuple(index * step for index in range(first, last + 1)))


def tick_labels(scale: Scale) -> list[str]:
    """Signed labels of a difference axis, all with the decimals of its step."""
    step = scale.ticks[1] - scale.ticks[0] if len(scale.ticks) > 1 else 1.0
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [number(tick, decimals, sign=True) for tick in scale.ticks]


def axis(scale: Scale, labels: list[str]) -> Markup:
    """Tick labels of a table's head."""
    texts = [_text(scale.x(tick), label) for tick, label in zip(scale.ticks, labels, strict=True)]
    return Markup('<svg class="axis" width="100%" height="16" aria-hidden="true">{}</svg>').format(
        Markup("").join(texts)
    )


def row(
    scale: Scale,
    estimate: float | None,
    low: float | None,
    high: float | None,
    *,
    tone: str = NEUTRAL,
    solid: bool = True,
    losses: Sequence[tuple[float, str]] = (),
) -> Markup:
    """One interval: line with caps and dot; hollow and dashed where `solid` is False; margins as bands.

    `losses` are (position on the scale, side): what lies beyond it on that side (`left` or `right`) is not allowed.
    Edge: a missing interval draws the grid alone.
    """
    parts = [_grid(scale)]
    parts += [_margin(scale, margin, side) for margin, side in losses if not scale.beyond(margin)]
    if scale.low < 0 < scale.high:
        parts.append(_line(scale.x(0), 0, scale.x(0), 24, "zero"))
    if low is not None and high is not None:
        parts.append(_whisker(scale, low, high))
    if estimate is not None and not scale.beyond(estimate):
        parts.append(Markup('<circle cx="{}%" cy="12" r="{}"/>').format(_number(scale.x(estimate)), 5 if solid else 4))
    classes = f"iv {tone}" + ("" if solid else " thin")
    return Markup('<svg class="{}" width="100%" height="24" aria-hidden="true">{}</svg>').format(
        classes, Markup("").join(parts)
    )


def _whisker(scale: Scale, low: float, high: float) -> Markup:
    left, right = scale.x(low), scale.x(high)
    parts = [_line(left, 12, right, 12, "span")]
    for value, x, arrow in ((low, left, "‹"), (high, right, "›")):
        parts.append(
            Markup('<text class="arrow" x="{}%" y="16" text-anchor="{}">{}</text>').format(
                _number(x), "end" if arrow == "‹" else "start", arrow
            )
            if scale.beyond(value)
            else _line(x, 7, x, 17, "cap")
        )
    return Markup("").join(parts)


def _margin(scale: Scale, margin: float, bad_side: str) -> Markup:
    x = scale.x(margin)
    left, width = (0.0, x) if bad_side == "left" else (x, 100.0 - x)
    band = Markup('<rect class="loss" x="{}%" y="2" width="{}%" height="20"/>').format(_number(left), _number(width))
    return band + _line(x, 2, x, 22, "edge")


def _grid(scale: Scale) -> Markup:
    return Markup("").join(_line(scale.x(tick), 0, scale.x(tick), 24, "tick") for tick in scale.ticks)


def _line(x1: float, y1: float, x2: float, y2: float, name: str) -> Markup:
    return Markup('<line class="{}" x1="{}%" y1="{}" x2="{}%" y2="{}"/>').format(
        name, _number(x1), _number(y1), _number(x2), _number(y2)
    )


def _text(x: float, label: str) -> Markup:
    return Markup('<text x="{}%" y="12" text-anchor="middle">{}</text>').format(_number(x), label)


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _round_step(raw: float) -> float:
    """The nearest of 1, 2, 5 times a power of ten at or above `raw`."""
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
