"""Fuzz one target with atheris: python tests/fuzz/run.py TARGET [-runs=N] [-max_total_time=S] ...

The words after the target are libFuzzer's. An input that breaks a promise is written to a file and named.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parent))
with atheris.instrument_imports(include=["nightschool.gateway", "nightschool.rendering"]):
    import targets


def main() -> None:
    name, *words = sys.argv[1:]
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(targets.SEEDS[name]):
            (Path(corpus) / str(number)).write_bytes(seed)
        atheris.Setup([sys.argv[0], corpus, *words], targets.TARGETS[name])
        atheris.Fuzz()


main()
