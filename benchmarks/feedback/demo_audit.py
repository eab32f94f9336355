"""Does the audit refuse SmolLM2-135M as a teacher on the demo's own store?

The demo's first day is played: 240 customers, 40 % of whom leave a few vague words, 60 % a thumb, 5 % of these wrong.
On a copy of its folder `nightschool train --objective hindsight` is run, which must refuse before a step and name a
scalar objective. The figure shows how far words tell accepted from rejected replies.

    python benchmarks/feedback/demo_audit.py --seeds 5
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "objectives"))
from harness import COLORS, OUT, Experiment, Row, Seed, measured, styled

from nightschool.access.tokens import admin_token
from nightschool.cli.progress import Progress
from nightschool.demo.days import Place
from nightschool.demo.story import AGENT, Demo, Script

SETTINGS: dict[str, Any] = {"objective": "hindsight", "customers": 240}
PORT = 8760
REFUSED = 3  # the exit code


def play(seed: int) -> Seed:
    played = OUT / "feedback" / "demo" / f"seed-{seed}"
    live_a_day(played, seed)
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        shutil.copytree(played, state, ignore=shutil.ignore_patterns("*.lock", "poisoned"))
        return refused(state)


def live_a_day(state: Path, seed: int) -> None:
    """The handbook and the first day of the demo; what is there already is not played again."""
    demo = Demo(state, Script(seed=seed, customers=SETTINGS["customers"], poison=False), Progress())
    if "day 1" in demo.journal.phases:
        return
    with demo.commands.up(PORT) as running:
        demo.teach()
        demo.day(Place(running.gateway_url, AGENT, admin_token(state)), 1)


def refused(state: Path) -> Seed:
    """What the command answers, and what the run that it made has kept."""
    words = ["train", "--objective", SETTINGS["objective"], "--agent", AGENT, "--json"]
    command = [sys.executable, "-m", "nightschool", *words, "--state", str(state)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    document = json.loads(done.stdout)
    answer = document.get("refusal") or document.get("error") or {}
    audits = sorted((state / "runs").glob("*/audit.json"), key=lambda path: path.stat().st_mtime)
    report = json.loads(audits[-1].read_text())["report"] if audits else {}
    steps = [path for path in (state / "runs").glob("*/work") if any(path.iterdir())]
    return {"code": done.returncode, "answer": answer, "report": report, "steps": len(steps)}


def rows_of(seeds: list[Seed]) -> list[Row]:
    right = [seed["code"] == REFUSED and not seed["steps"] for seed in seeds]
    named = ["--objective oapl" in seed["answer"].get("next", "") for seed in seeds]
    rows = [
        Row("refused, before a step", f"{sum(right)} of {len(seeds)}", f"= {len(seeds)}", all(right)),
        Row("a scalar objective is named", f"{sum(named)} of {len(seeds)}", f"= {len(seeds)}", all(named)),
    ]
    for key in ("accepted", "rejected", "items"):
        rows.append(measured(f"replies with words, {key}", [seed["report"].get(key, 0) for seed in seeds], 0))
    for key, title in (("own", "behind their own words"), ("beyond_placebo", "beside another reply's")):
        rows.append(measured(f"area between accepted and rejected, {title}", [_area(seed, key) for seed in seeds], 2))
    return rows


def _area(seed: Seed, key: str, end: str = "value") -> float:
    found = seed["report"].get("separation", {}).get("all")
    return found[key]["area"][end] if found else float("nan")


def draw(figure: Any, seeds: list[Seed]) -> None:
    """The two areas of each seed, with their intervals."""
    axes = figure.subplots()
    for number, seed in enumerate(seeds):
        for shift, key, color in ((-0.1, "own", COLORS[0]), (0.1, "beyond_placebo", COLORS[1])):
            ends = [_area(seed, key, end) for end in ("low", "high")]
            label = ("own words", "beside another's")[key != "own"] if not number else None
            axes.plot([number + shift] * 2, ends, color=color, lw=1)
            axes.plot([number + shift], [_area(seed, key)], "o", color=color, ms=4, label=label)
    axes.axhline(0.5, color=COLORS[4], lw=0.8)
    styled(axes, "seed", "accepted above rejected").set_ylim(0, 1)
    axes.set_xticks(range(len(seeds)))
    axes.legend(frameon=False, fontsize=7)


if __name__ == "__main__":
    Experiment("demo_audit", SETTINGS, play, rows_of, draw, (4.2, 3.0), group="feedback").main(__doc__)
