"""What the benchmarks share: one table, one JSON file under benchmarks/out, the facts of the machine."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nightschool.models.lora import LoraModel

OUT = Path(__file__).parent / "out"
STOP_S = 30.0
STARTED = time.monotonic()


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a benchmark's table. `passed` is `None` where nothing is claimed."""

    name: str
    value: str
    bound: str = ""
    passed: bool | None = None
    note: str = ""


def at_most(name: str, value: float, bound: float, note: str = "") -> Row:
    """A claim that `value` does not exceed `bound`. Edge: NaN misses."""
    return Row(name, f"{value:.3g}", f"<= {bound:g}", value <= bound, note)


def at_least(name: str, value: float, bound: float, note: str = "") -> Row:
    """A claim that `value` reaches `bound`. Edge: NaN misses."""
    return Row(name, f"{value:.6g}", f">= {bound:g}", value >= bound, note)


def exactly(name: str, value: int, expected: int, note: str = "") -> Row:
    """A claim that a count is what it should be."""
    return Row(name, str(value), f"= {expected}", value == expected, note)


def covers_zero(name: str, mean: float, half_width: float, note: str = "") -> Row:
    """A claim that 0 lies within `mean` plus or minus `half_width`. Edge: NaN misses."""
    return Row(name, f"{mean:+.5f} ± {half_width:.5f}", "0 within", abs(mean) <= half_width, note)


def mean_of_clusters(sums: Sequence[float], counts: Sequence[int], level: float = 0.95) -> tuple[float, float]:
    """Mean per element and the half width of its interval, when elements of one cluster depend on each other.

    Shapes: `sums` and `counts` hold the sum and the number of elements of each cluster. The ratio estimator's
    standard error with Student's t of one degree of freedom less than there are clusters.

    Edge: the interval of fewer than two clusters is not known: NaN.
    """
    from scipy import stats

    total, num_clusters = sum(counts), len(counts)
    mean = sum(sums) / total if total else math.nan
    if num_clusters < 2:
        return mean, math.nan
    square = sum((part - mean * count) ** 2 for part, count in zip(sums, counts, strict=True))
    error = math.sqrt(square * num_clusters / (num_clusters - 1)) / total
    return mean, float(stats.t.ppf((1 + level) / 2, num_clusters - 1)) * error


def ratio_of(numerators: Sequence[float], denominators: Sequence[float]) -> tuple[float, float, float]:
    """Ratio of medians and the 95 % interval of a bootstrap over rounds."""
    import numpy as np

    dice = np.random.default_rng(0)
    a, b = np.array(numerators), np.array(denominators)
    drawn = dice.integers(0, len(a), (2000, len(a)))
    ratios = np.median(a[drawn], axis=1) / np.median(b[drawn], axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(np.median(a) / np.median(b)), float(low), float(high)


def options_of(doc: str | None, **numbers: float) -> argparse.ArgumentParser:
    """A parser with --json and one option for each of `numbers`, with that default and its type."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the JSON document instead of the table")
    for name, default in numbers.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, help="%(default)s")
    return parser


def report(name: str, asked: argparse.Namespace, rows: Sequence[Row], machine: dict[str, Any], **facts: Any) -> None:
    """Write benchmarks/out/<name>.json and print the table, or the same document with --json."""
    document = {
        "benchmark": name,
        "command": " ".join(["python", os.path.relpath(sys.argv[0], Path(__file__).parents[1]), *sys.argv[1:]]),
        "options": {key: value for key, value in vars(asked).items() if key != "json"},
        "machine": machine,
        "rows": [asdict(row) for row in rows],
        "passed": all(row.passed for row in rows if row.passed is not None),
        **facts,
    }
    OUT.mkdir(exist_ok=True)
    (OUT / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document, indent=1) if asked.json else table(rows))


def table(rows: Sequence[Row]) -> str:
    """The rows as columns of text."""
    verdicts = {None: "", True: "pass", False: "MISS"}
    cells = [(row.name, row.value, row.bound, verdicts[row.passed], row.note) for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(5)]
    lines = ("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in cells)
    return "\n".join(line.rstrip() for line in lines)


def tell(text: str) -> None:
    """What is being done now, on stderr, with the seconds since the start."""
    print(f"{time.monotonic() - STARTED:6.0f} s  {text}", file=sys.stderr, flush=True)


def machine_facts() -> dict[str, Any]:
    """What the numbers were measured on. Take it before the work starts: `load` tells what else was running."""
    names = ("nightschool", "torch", "transformers", "numpy")
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in names},
        "commit": _commit(),
        "load": round(os.getloadavg()[0], 2),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def random_adapter(folder: Path, lora: LoraModel, seed: int, deviation: float = 0.02) -> None:
    """Write a PEFT folder whose random weights visibly change the model without breaking its language."""
    import torch

    from nightschool.models.lora import LoraConfig, write_adapter

    name, config = "random", LoraConfig(rank=8, alpha=16)
    lora.create(name, config, seed=seed)
    tensors = lora.tensors(name)
    lora.unload(name)
    generator = torch.Generator().manual_seed(seed)
    for key in sorted(tensors):
        if key.endswith(".lora_B.weight"):  # a fresh B is zero and would change nothing
            tensors[key].normal_(0, deviation, generator=generator)
    write_adapter(folder, config, tensors, name)


@contextlib.contextmanager
def child(words: Sequence[str], log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process for the length of the block; what it says on stderr goes to `log`, its stdout is a pipe."""
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, *words], stdout=subprocess.PIPE, stderr=errors, env={**os.environ, **environment}
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def first_line(process: subprocess.Popen[bytes], log: Path) -> str:
    """The line that says that it is ready. Raises: RuntimeError with its last words when it ends instead."""
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    if not line:
        raise RuntimeError(f"{process.args} ended with code {process.wait()}:\n{log.read_text()[-2000:]}")
    return line


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _commit() -> str | None:
    """The commit of the code, with a plus where files were changed since; `None` outside a repository."""
    here = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty=+"], cwd=here, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()
