"""Which metrics of a run are drawn together, what they are called, and where their stop lines lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nightschool.dashboard.formatting import number
from nightschool.dashboard.series import Points, caption, stand_in, thin
from nightschool.types import Json

TONES = {"good": "better", "bad": "worse"}


@dataclass(frozen=True, slots=True)
class Curve:
    """One plot: title, unit, the metrics in it with their names, and its stop lines: a config's key or a number."""

    title: str
    unit: str
    lines: tuple[tuple[str, str], ...]
    stops: tuple[tuple[str | float, str], ...] = ()


CURVES = (
    Curve("Loss", "", (("loss", "loss"),)),
    Curve("KL to the anchor", "nats per sequence", (("kl", "held-out KL"),), (("kl_stop", "stop"),)),
    Curve("Pessimism κ / β", "", (("kappa", "kappa"),), ((0.0, "used up"),)),
    Curve(
        "Held-out log-ratio",
        "nats per reply",
        (("held_out_good", "replies rated good"), ("held_out_bad", "replies rated bad")),
    ),
    Curve(
        "Markers of doubt",
        "per 1,000 tokens",
        (("markers", "whole words"), ("markers_anywhere", "anywhere in a word")),
    ),
    Curve(
        "Questions of another kind",
        "",
        (("other_success", "right"), ("other_confidence", "confidence")),
    ),
    Curve("Entropy of drawn replies", "nats per token", (("reply_entropy", "entropy"),)),
    Curve("Length of drawn replies", "tokens", (("reply_tokens", "tokens"),)),
    Curve("Likeness of drawn replies", "ROUGE-L", (("similarity", "likeness"),), (("similarity", "alarm"),)),
    Curve("Gradient norm", "", (("grad_norm", "gradient norm"),)),
    Curve("Tokens per second", "", (("tokens_per_s", "tokens per second"),)),
)


def plots(metrics: dict[str, Points], config: Json) -> list[Json]:
    """The plots of a run: the known ones in a fixed order, then every other metric on its own."""
    known = {name for curve in CURVES for name, _ in curve.lines}
    others = [
        Curve(name.replace("_", " ").capitalize(), "", ((name, name),)) for name in sorted(metrics) if name not in known
    ]
    return [
        _plot(curve, metrics, config) for curve in (*CURVES, *others) if any(name in metrics for name, _ in curve.lines)
    ]


def _plot(curve: Curve, metrics: dict[str, Points], config: Json) -> Json:
    lines = [(label, metrics[name]) for name, label in curve.lines if name in metrics]
    tones = [_tone(label) if len(lines) > 1 else "ink" for label, _ in lines]
    stops = [
        {"label": label, "value": value} for key, label in curve.stops if (value := _find(config, key)) is not None
    ]
    thinned = [thin(points) for _, points in lines]
    steps = sorted({step for part in thinned for step in part.steps})
    series = []
    for (label, _), tone, part in zip(lines, tones, thinned, strict=True):
        mid = dict(zip(part.steps, part.mid, strict=True))
        row: Json = {"label": label, "tone": tone, "values": [mid.get(step) for step in steps]}
        if part.low is not None and part.high is not None:
            low, high = (dict(zip(part.steps, side, strict=True)) for side in (part.low, part.high))
            row |= {"low": [low.get(step) for step in steps], "high": [high.get(step) for step in steps]}
        series.append(row)
    per_point = max(part.per_point for part in thinned)
    note = f" Line: mean of {per_point} steps, band: their min and max." if per_point > 1 else ""
    return {
        "title": curve.title,
        "unit": curve.unit,
        "caption": " ".join(caption(_sentence(label, curve), points) for label, points in lines) + note,
        "steps": steps,
        "series": series,
        "stops": stops,
        "stand_in": stand_in(
            list(zip(tones, (points for _, points in lines), strict=True)), [s["value"] for s in stops]
        ),
        "table": _table(steps, series),
        "last": [{"label": row["label"], "tone": row["tone"], "value": _last(row["values"])} for row in series],
    }


def _sentence(label: str, curve: Curve) -> str:
    return label.capitalize() if len(curve.lines) > 1 else curve.title


def _tone(label: str) -> str:
    return next((tone for word, tone in TONES.items() if word in label.split()), "ink")


def _last(values: list[float | None]) -> str:
    return number(next((value for value in reversed(values) if value is not None), None))


def _table(steps: list[int], series: list[Json], rows: int = 25) -> list[Json]:
    """At most `rows` rows, evenly spread, the first and the last step among them."""
    last = len(steps) - 1
    picked = (
        sorted({round(index * last / max(1, rows - 1)) for index in range(rows)}) if last >= rows else range(len(steps))
    )
    return [{"step": steps[at], "values": [number(row["values"][at]) for row in series]} for at in picked]


def _find(config: Any, key: str | float) -> float | None:
    """A number in a nested config, wherever its table is; a number stands for itself."""
    if isinstance(key, float):
        return key
    if not isinstance(config, dict):
        return None
    value = config.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return next((found for part in config.values() if (found := _find(part, key)) is not None), None)
