"""The demo's last page: what the customers got before and after, with intervals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from nightschool.cli.answer import Answer, Table
from nightschool.cli.drawing import axis, bar
from nightschool.dashboard.intervals import SHARE
from nightschool.demo.journal import Journal
from nightschool.gate.statistics import newcombe, wilson
from nightschool.types import Json

DAYS = (1, 2, 3)
PER_SIDE = 0.025  # 95 % intervals


def tell(journal: Journal, seed: int, state: Path) -> Answer:
    """The report as an answer with a table; also written as JSON beside the journal."""
    facts = measure(journal, seed)
    (state / "demo" / "report.json").write_text(json.dumps(facts, indent=1))
    gain = facts["gain"]
    sentence = (
        f"Customers who got what they came for: {_percent(facts['days'][0]['fulfilled'])} on day 1, "
        f"{_percent(facts['days'][-1]['fulfilled'])} on day 3: {gain['points']:+.0f} points "
        f"[{gain['low']:+.0f}, {gain['high']:+.0f}]."
    ).replace("-", "−")
    evidence = (_days_table(facts), _verdicts_table(facts))
    return Answer("demo", sentence, facts, evidence, f"nightschool up --state {state}   # and look at the dashboard")


def measure(journal: Journal, seed: int) -> Json:
    """Every number of the report, from the journal."""
    visits = {day: journal.phases[f"day {day}"]["result"] for day in DAYS}
    version, days = 1, []
    for day in DAYS:
        if day > 1 and journal.phases[f"night {day - 1} promote"]["result"]["promoted"]:
            version += 1
        row = {"day": day, "version": f"v{version}", "customers": len(visits[day])}
        days.append(row | _shares(visits[day]))
    ends = [(sum(v["fulfilled"] for v in visits[day]), len(visits[day])) for day in (DAYS[-1], DAYS[0])]
    low, high = newcombe(ends[0], ends[1], PER_SIDE)
    points = 100 * (ends[0][0] / ends[0][1] - ends[1][0] / ends[1][1])
    return {
        "seed": seed,
        "days": days,
        "gain": {"points": points, "low": 100 * low, "high": 100 * high},
        "verdicts": {
            name: journal.phases[f"{name} exam"]["result"]
            for name in ("night 1", "poison", "night 2")
            if f"{name} exam" in journal.phases
        },
        "roll_back": journal.phases["roll back"]["result"],
        "seconds": {name: done["seconds"] for name, done in journal.phases.items() if "seconds" in done},
    }


def _shares(visits: list[Json]) -> Json:
    rated = [visit for visit in visits if visit["thumb"] is not None]
    new = [visit for visit in visits if visit["held_out"]]
    return {
        "fulfilled": _share(visits, lambda visit: visit["fulfilled"]),
        "thumbs_up": _share(rated, lambda visit: visit["thumb"]),
        "new_phrasings": _share(new, lambda visit: visit["fulfilled"]),
        "right_tool": _share(visits, lambda visit: visit["right_tool"]),
    }


def _share(visits: list[Json], good: Callable[[Json], bool]) -> Json | None:
    """A share with its Wilson interval; `None` where nobody was asked."""
    if not visits:
        return None
    count = sum(map(good, visits))
    low, high = wilson(count, len(visits), PER_SIDE)
    return {"estimate": count / len(visits), "low": low, "high": high, "n": len(visits)}


def _days_table(facts: Json) -> Table:
    rows = []
    for row in facts["days"]:
        share = row["fulfilled"]
        drawn = bar(SHARE, tuple(100 * share[key] for key in ("estimate", "low", "high")), solid=True)
        rows.append(
            (
                f"day {row['day']}",
                row["version"],
                str(row["customers"]),
                _percent(share),
                drawn,
                _percent(row["thumbs_up"]),
            )
        )
    header = (
        "",
        "served by",
        "customers",
        "got it, % [95 %]",
        axis(SHARE, [f"{t:.0f}" for t in SHARE.ticks]),
        "thumbs up, %",
    )
    return Table(tuple(rows), header, drawn=(4,))


def _verdicts_table(facts: Json) -> Table:
    return Table(tuple((name, verdict["sentence"]) for name, verdict in facts["verdicts"].items()))


def _percent(share: Json | None) -> str:
    if share is None:
        return "missing"
    return f"{100 * share['estimate']:.0f} [{100 * share['low']:.0f}, {100 * share['high']:.0f}]"
