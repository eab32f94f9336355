"""Intervals as one line of characters: caps, dot, zero line, and shading where a loss is not allowed."""

from __future__ import annotations

from collections.abc import Sequence

from nightschool.cli.output import WIDEST, terminal_width
from nightschool.dashboard.intervals import Scale

MOST_CELLS, LEAST_CELLS = 32, 24
GLYPHS = {"up": "▲", "down": "▼", "square": "■", "question": "?", "open": "○"}


def bar(
    scale: Scale,
    interval: tuple[float | None, float | None, float | None],
    losses: Sequence[tuple[float, str]] = (),
    solid: bool = True,
) -> str:
    """`▒▒▒┊ ├──●──┤`: (estimate, low, high) on the scale; hollow and dashed where not `solid`.

    `losses` are (position, side), as for the dashboard's rows. What lies outside the scale ends in an arrow.
    """
    num_cells = width()
    cells = [" "] * num_cells
    for edge, side in losses:
        place = _place(scale, edge)
        shaded = range(place) if side == "left" else range(place + 1, num_cells)
        for cell in shaded:
            cells[cell] = "▒"
        cells[place] = "┊"
    if scale.low < 0 < scale.high:
        cells[_place(scale, 0.0)] = "│"
    estimate, low, high = interval
    if low is not None and high is not None:
        left, right = _place(scale, low), _place(scale, high)
        for cell in range(left, right + 1):
            cells[cell] = "─" if solid else "┄"
        cells[left] = "‹" if scale.beyond(low) else "├"
        cells[right] = "›" if scale.beyond(high) else "┤"
    if estimate is not None and not scale.beyond(estimate):
        cells[_place(scale, estimate)] = "●" if solid else "○"
    return "".join(cells)


def axis(scale: Scale, labels: Sequence[str]) -> str:
    """The tick labels above a column of bars; one that would touch its neighbor is left out."""
    num_cells = width()
    text = [" "] * num_cells
    free_from = 0
    for tick, label in zip(scale.ticks, labels, strict=True):
        start = min(max(0, _place(scale, tick) - len(label) // 2), num_cells - len(label))
        if start < free_from:
            continue
        text[start : start + len(label)] = label
        free_from = start + len(label) + 1
    return "".join(text).rstrip()


def width() -> int:
    """Cells of one bar: more where the terminal has room."""
    return MOST_CELLS if terminal_width() >= WIDEST else LEAST_CELLS


def _place(scale: Scale, value: float) -> int:
    inside = min(max(value, scale.low), scale.high)
    return round((width() - 1) * (inside - scale.low) / (scale.high - scale.low))
