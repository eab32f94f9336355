"""A value model's reliability: what it said against what came true, a point a bin, with the outcomes' interval."""

from __future__ import annotations

from markupsafe import Markup

from nightschool.dashboard.formatting import interval, percent, plural, share
from nightschool.types import Json

SIDE, LEFT, BELOW = 200, 40, 36  # pixels: the square, and what its labels need
TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)


def believed(report: Json | None) -> Json | None:
    """The report of `valuation.reliability` as plot, caption and table; nothing where no value model was fitted."""
    if not report or not report.get("reliability"):
        return None
    rows = [{"name": f"bin {place}", **part} for place, part in enumerate(report["reliability"], start=1)]
    rows += [{"name": name, **part} for name, part in report.get("slices", {}).items()]
    return {"plot": plot(report["reliability"]), "caption": caption(report), "table": [_told(row) for row in rows]}


def caption(report: Json) -> str:
    """The Brier score beside that of always saying the mean, and how many bins are off."""
    bins = report["reliability"]
    off = sum(_off(part) for part in bins)
    score = interval(report["brier"], report.get("brier_low"), report.get("brier_high"))
    return (
        f"Brier score {score} over {plural(report['rows'], 'row')}; always saying {percent(report['mean'])} would have "
        f"{report['brier_of_mean']:.2f}. Off by more than the 95 % interval: {off} of {plural(len(bins), 'bin')}."
    )


def plot(bins: list[Json]) -> Markup:
    """Predicted to the right, came true upwards; on the diagonal the model is right."""
    parts = [_line("tick", _x(t), _y(0), _x(t), _y(1)) + _line("tick", _x(0), _y(t), _x(1), _y(t)) for t in TICKS]
    for tick in TICKS[::2]:
        parts.append(_text(_x(tick), SIDE + 26, "middle", percent(tick)))
        parts.append(_text(LEFT - 6, _y(tick) + 4, "end", percent(tick)))
    parts.append(_line("zero", _x(0), _y(0), _x(1), _y(1)))
    for part in bins:
        x, low, high = _x(part["predicted"]), _y(part["low"]), _y(part["high"])
        marks = [_line("span", x, low, x, high), *(_line("cap", x - 5, y, x + 5, y) for y in (low, high))]
        marks.append(Markup('<circle cx="{}" cy="{}" r="5"/>').format(x, _y(part["observed"])))
        name = "worse" if _off(part) else "neutral"
        parts.append(Markup('<g class="{}">{}</g>').format(name, Markup("").join(marks)))
    return Markup('<svg class="iv square" width="{}" height="{}" aria-hidden="true">{}</svg>').format(
        LEFT + SIDE + 10, SIDE + BELOW, Markup("").join(parts)
    )


def _told(part: Json) -> Json:
    return {
        "name": part["name"],
        "predicted": percent(part["predicted"]),
        "observed": share(part["observed"], part["low"], part["high"]),
        "rows": part["rows"],
    }


def _off(part: Json) -> bool:
    return not part["low"] <= part["predicted"] <= part["high"]


def _x(value: float) -> float:
    return round(LEFT + SIDE * value, 1)


def _y(value: float) -> float:
    return round(10 + SIDE * (1 - value), 1)


def _line(name: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    return Markup('<line class="{}" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(name, x1, y1, x2, y2)


def _text(x: float, y: float, anchor: str, label: str) -> Markup:
    return Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(x, y, anchor, label)
