"""Does an agent get better overnight? The demo on five seeds, all reported.

Claims: after two nights the pooled gain on fresh customers is at least 25 points and the lower end of its 95 %
interval at least 18; at least 4 of 5 seeds are better on their own; the clean candidate of night 1 is promoted on
at least 4 of 5 seeds; the poisoned one is refused on 5 of 5; the shipped probes are not worse beyond the gate's
margin. And the scenario can be learned at all: on at least three seeds the handbook alone serves 35 to 55 % and two
nights add at least 30 points. Success is what the shop's books say, which neither the learner nor the gate's
training rows ever see.

    python benchmarks/overnight.py --seeds 0 1 2 3 4

Each seed plays `nightschool demo` in benchmarks/out/overnight/seed-N and can be interrupted and resumed; a seed
that is finished is not played again. The table, overnight.json and overnight.svg are made from the five reports.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from scipy import stats

from nightschool.gate.statistics import wilson

OUT = Path(__file__).parent / "out"
FOLDER = OUT / "overnight"
SAMPLE_S = 1.0
CLAIMS = {"gain": 25.0, "low": 18.0, "better_seeds": 4, "promoted": 4, "refused": 5, "learnable_seeds": 3}
DAY_ONE = (0.35, 0.55)
LEARNABLE = 30.0


def play(seed: int) -> dict[str, Any]:
    """The report of one seed, played now unless it is there. The highest memory of its processes is kept beside it."""
    state = FOLDER / f"seed-{seed}"
    report = state / "demo" / "report.json"
    if not report.exists():
        words = ["-m", "nightschool", "demo", "--seed", str(seed), "--state", str(state), "--json"]
        demo = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
        peak = Peak(demo.pid)
        code = demo.wait()
        if code:
            raise SystemExit(f"Seed {seed} ended with code {code}. Run the same command to go on.")
        (state / "demo" / "peak.json").write_text(json.dumps({"bytes": peak.stop()}))
    peak_file = state / "demo" / "peak.json"
    memory = json.loads(peak_file.read_text())["bytes"] if peak_file.exists() else None
    return json.loads(report.read_text()) | {"peak_bytes": memory}


class Peak:
    """The highest sum of resident memory over a process and all it started, looked at once a second."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.most = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        self._ended.set()
        self._thread.join()
        return self.most

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self.most = max(self.most, tree_bytes(self.pid))


def tree_bytes(root: int) -> int:
    """Resident bytes of `root` and its descendants, from /proc; shared pages count once per process."""
    parents, resident = {}, {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            resident[int(entry.name)] = int((entry / "statm").read_text().split()[1]) * 4096
        except (OSError, IndexError):
            continue
        parents[int(entry.name)] = int(fields[1])
    total = 0
    for pid, size in resident.items():
        above = pid
        while above not in (0, root):
            above = parents.get(above, 0)
        total += size if above == root else 0
    return total


def pool(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """All seeds together: the mean gain with two intervals.

    `within`: from the customers alone (seeds as strata, unpooled variances). `across`: t interval of the seeds'
    gains, which also holds what differs between seeds; the claim is read from the wider one.
    """
    gains, variances = [], []
    for report in reports:
        first, last = report["days"][0]["fulfilled"], report["days"][-1]["fulfilled"]
        gains.append(100 * (last["estimate"] - first["estimate"]))
        variances.append(sum(1e4 * s["estimate"] * (1 - s["estimate"]) / s["n"] for s in (first, last)))
    mean = sum(gains) / len(gains)
    within = stats.norm.ppf(0.975) * math.sqrt(sum(variances)) / len(gains)
    across = None
    if len(gains) > 1:
        deviation = math.sqrt(sum((gain - mean) ** 2 for gain in gains) / (len(gains) - 1))
        across = float(stats.t.ppf(0.975, len(gains) - 1)) * deviation / math.sqrt(len(gains))
    half = max(within, across or 0.0)
    return {
        "gain": mean,
        "low": mean - half,
        "high": mean + half,
        "half_width_within": within,
        "half_width_across": across,
    }


def summarize(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """The claims, each with what was measured and whether it held."""
    pooled = pool(reports)
    better = sum(report["gain"]["low"] > 0 for report in reports)
    promoted = sum(report["verdicts"]["night 1"]["decision"] == "promote" for report in reports)
    refused = sum(report["verdicts"]["poison"]["decision"] == "refuse" for report in reports)
    in_range = [DAY_ONE[0] <= report["days"][0]["fulfilled"]["estimate"] <= DAY_ONE[1] for report in reports]
    learnable = sum(ok and report["gain"]["points"] >= LEARNABLE for ok, report in zip(in_range, reports, strict=True))
    worst_probe = [suite_of(report, "night 2", "OOD probes, likelihood") for report in reports]
    return {
        "seeds": [report["seed"] for report in reports],
        "pooled": pooled,
        "better_seeds": better,
        "promoted_night_1": promoted,
        "poison_refused": refused,
        "day_one_in_range": sum(in_range),
        "learnable_seeds": learnable,
        "probes_night_2": worst_probe,
        "held": {
            "gain": pooled["gain"] >= CLAIMS["gain"],
            "low": pooled["low"] >= CLAIMS["low"],
            "better_seeds": better >= CLAIMS["better_seeds"],
            "promoted": promoted >= CLAIMS["promoted"],
            "refused": refused >= CLAIMS["refused"],
            "learnable_seeds": learnable >= CLAIMS["learnable_seeds"],
        },
        "reports": reports,
    }


def suite_of(report: dict[str, Any], verdict: str, name: str) -> dict[str, Any] | None:
    """One suite's row of one verdict, `None` where the exam was not held."""
    suites = report["verdicts"].get(verdict, {}).get("report", {}).get("suites", [])
    return next((suite for suite in suites if suite["name"] == name), None)


def table(summary: dict[str, Any]) -> str:
    """Markdown: a row per seed, then the pool and the claims."""
    lines = [
        "| seed | day 1, % | day 2, % | day 3, % | gain, points [95 %] | night 1 | poisoned | night 2 |"
        " minutes | peak memory |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for report in summary["reports"]:
        days = [f"{100 * day['fulfilled']['estimate']:.0f} ({day['version']})" for day in report["days"]]
        gain = report["gain"]
        verdicts = [report["verdicts"][name]["decision"] for name in ("night 1", "poison", "night 2")]
        minutes = sum(report["seconds"].values()) / 60
        memory = "–" if report["peak_bytes"] is None else f"{report['peak_bytes'] / 2**30:.1f} GiB"
        span = f"{gain['points']:+.0f} [{gain['low']:+.0f}, {gain['high']:+.0f}]"
        cells = [str(report["seed"]), *days, span, *verdicts, f"{minutes:.1f}", memory]
        lines.append("| " + " | ".join(cells) + " |")
    pooled = summary["pooled"]
    lines.append("")
    lines.append(f"Pooled gain {pooled['gain']:+.1f} points [{pooled['low']:+.1f}, {pooled['high']:+.1f}], 95 %.")
    for name, held in summary["held"].items():
        lines.append(f"- {name}: {'held' if held else 'MISSED'} (claimed {CLAIMS[name]})")
    return "\n".join(lines)


def draw(summary: dict[str, Any], path: Path) -> None:
    """Success by day, one line a seed, with 95 % Wilson bars."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    axes = figure.subplots()
    days = ["day 1\nhandbook", "day 2\nafter night 1", "day 3\nafter night 2"]
    for shift, report in enumerate(summary["reports"]):
        places = [day + (shift - 2) * 0.06 for day in range(len(days))]
        shares = [day["fulfilled"] for day in report["days"]]
        middle = [100 * share["estimate"] for share in shares]
        ends = [wilson(round(share["estimate"] * share["n"]), share["n"], 0.025) for share in shares]
        below = [m - 100 * low for m, (low, _) in zip(middle, ends, strict=True)]
        above = [100 * high - m for m, (_, high) in zip(middle, ends, strict=True)]
        axes.errorbar(
            places, middle, yerr=[below, above], marker="o", ms=4, lw=1, capsize=2, color="#1A5FB4", alpha=0.7
        )
    axes.set_xticks(range(len(days)), days)
    axes.set_ylim(0, 100)
    axes.set_ylabel("customers who got what\nthey came for, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#D9D5CB", lw=0.6)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    seeds = parser.parse_args().seeds
    started = time.time()
    summary = summarize([play(seed) for seed in seeds])
    (OUT / "overnight.json").write_text(json.dumps(summary, indent=1))
    draw(summary, OUT / "overnight.svg")
    print(table(summary))
    print(f"\n{time.time() - started:.0f} s for this call.")


if __name__ == "__main__":
    main()
