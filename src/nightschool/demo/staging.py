"""The staging shop: the harness of an exam. Run by `nightschool gate run`, which tells it what to ask for."""

from __future__ import annotations

import argparse
import os
import sys

from nightschool.cli.progress import Progress
from nightschool.demo.days import HELD_OUT_SHARE, Crowd, Place, sit_exam


def main() -> int:
    """The same customers visit the candidate's shop and the incumbent's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--customers", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--name", default="exam", help="what tells this exam's customers from another's")
    given = parser.parse_args()
    crowd = Crowd(given.name, given.customers, given.seed, HELD_OUT_SHARE)
    place = Place(os.environ["NIGHTSCHOOL_URL"], "", os.environ["NIGHTSCHOOL_TOKEN"])
    progress = Progress()
    for side in ("CANDIDATE", "INCUMBENT"):
        served = 0

        def tick(side: str = side) -> None:
            nonlocal served
            served += 1
            progress.say(f"Staging shop, {side.lower()}: {served} of {crowd.size} customers")

        sit_exam(place, os.environ["NIGHTSCHOOL_EXAM"], os.environ[f"NIGHTSCHOOL_{side}"], crowd, tick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
