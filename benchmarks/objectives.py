"""Every experiment of objectives/, one after the other: all figures anew, and the time it takes.

Seeds that are kept are not played again; their time counts. Two cores play the whole within an hour; it uses one.

    python benchmarks/objectives.py --seeds 5
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from common import OUT, Row, at_most, exactly, machine_facts, options_of, report, tell

FOLDER = Path(__file__).parent / "objectives"
SHARED = ("harness", "reader")
LONGEST_MIN = 60.0


def main() -> None:
    asked = options_of(__doc__, seeds=5).parse_args()
    machine = machine_facts()
    rows, minutes, failed = [], 0.0, 0
    for file in sorted(FOLDER.glob("*.py")):
        if file.stem in SHARED:
            continue
        tell(file.stem)
        if subprocess.run([sys.executable, file, "--seeds", str(asked.seeds)]).returncode:
            failed += 1
            continue
        took = json.loads((OUT / "objectives" / f"{file.stem}.json").read_text())["seconds"] / 60
        rows.append(Row(file.stem, f"{took:.1f} min"))
        minutes += took
    rows += [exactly("experiments that failed", failed, 0), at_most("processor time, min", minutes, LONGEST_MIN)]
    report("objectives", asked, rows, machine)


if __name__ == "__main__":
    main()
