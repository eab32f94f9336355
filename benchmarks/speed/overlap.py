"""What does it gain to draw the next batches while one is studied?

    python benchmarks/speed/overlap.py [--rounds 8] [--seeds 5] [--json]

The embedded engine draws groups over HTTP in a process of its own, the local backend studies them with `rloo_tis`: in
turns, each side on both cores, or side by side, each on one core, at most 1 or 2 versions behind. Two things are asked:

1. Speed, on SmolLM2-135M in bfloat16: a round is 4 steps (2 groups of 8 replies of up to 24 tokens) in turns and 4
   steps of one of the other arms, the latter first in every other round. A step's time is that from the end of the one
   before, so the first, which fills the pipeline, does not count. Of each arm the median and the fastest step of all
   rounds, the latter because other work on the machine only ever adds; processor time of both processes.
2. Learning, on the clerk of the recipes (a random Llama of two layers, float32): the exact probability of a right reply
   after the same number of steps of 8 groups of 8, mean over seeds with a 95 % t interval, paired by seed. So small a
   model is slower on two threads than on one: both sides have one, in turns too, which goes first.

A round and a seed are kept in benchmarks/out/overlap/ and not played again, so that a run may add one more.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "2000")
sys.path.append(str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[2] / "recipes"))

import clerk
import torch
from common import OUT, Row, child, first_line, machine_facts, mean_of_clusters, options_of, report, tell
from training import ratio_of

from nightschool.models.base import load_base
from nightschool.models.fetch import find_model
from nightschool.models.lora import LoraConfig
from nightschool.objectives.family import VARIANTS
from nightschool.training.backend import AdamConfig
from nightschool.training.groups import Task, draw_groups, study_groups
from nightschool.training.handover import EngineHandover
from nightschool.training.local import LocalBackend
from nightschool.training.overlap import Batch, Draw, run_steps
from nightschool.types import Sample
from nightschool.upstream.client import EngineClient

MODEL, CORES = "smollm2-135m", len(os.sched_getaffinity(0))
STEPS, GROUPS, GROUP_SIZE, MAX_TOKENS = 4, 2, 8, 24
CLERK_STEPS, CLERK_GROUPS, EVERY = 40, 8, 10
RULE = replace(VARIANTS["rloo_tis"], drop_equal=False)  # a batch of equal groups is a step without a gradient
OPTIMIZER, CLERK_OPTIMIZER = AdamConfig(learning_rate=5e-5), AdamConfig(learning_rate=2e-3)
TOPICS = ("a lighthouse", "a lost parcel", "the first snow", "a bakery", "an old map", "a night train", "two friends")


@dataclass(frozen=True, slots=True)
class Arm:
    """`threads`: of each side."""

    name: str
    max_staleness: int
    threads: int


TURNS = "in turns, 2 + 2 threads"
ARMS = (
    Arm(TURNS, 0, 2),
    Arm("in turns, 1 + 1 threads", 0, 1),
    Arm("1 behind, 1 + 1 threads", 1, 1),
    Arm("2 behind, 1 + 1 threads", 2, 1),
    Arm("1 behind, 2 + 2 threads", 1, 2),
)
LEARNED = (TURNS, "1 behind, 1 + 1 threads", "2 behind, 1 + 1 threads")  # threads change nothing that is learned


@dataclass(slots=True)
class Seen:
    """Of one run: seconds of each side and from step to step, versions behind, the clerk's success now and then."""

    drawing_s: list[float] = field(default_factory=list)
    studying_s: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)
    success: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Bench:
    """A trainer, and engines of the same model by their number of threads."""

    backend: LocalBackend
    engines: dict[int, tuple[str, int]]  # url, process
    adapters: Path

    def run(self, arm: Arm, draw: Any, optimizer: AdamConfig, steps: int, every: int = 0) -> dict[str, Any]:
        """`draw(client)` makes what draws; `every`: steps between two looks at the clerk's success."""
        self.backend.open(None)
        url, process = self.engines[arm.threads]
        seen = Seen()
        before, started = (time.process_time(), processor_s(process)), time.perf_counter()

        def study(batch: Batch) -> None:
            self._study(batch, arm.threads, optimizer, every, seen)

        asyncio.run(self._run(url, draw, study, seen, (steps, arm.max_staleness)))
        return {
            "wall_s": time.perf_counter() - started,
            "trainer_s": time.process_time() - before[0],
            "engine_s": processor_s(process) - before[1],
            "step_s": [after - before for before, after in itertools.pairwise(seen.ends)],
            "drawing_s": seen.drawing_s,
            "studying_s": seen.studying_s,
            "staleness": seen.staleness,
            "success": seen.success,
        }

    async def _run(self, url: str, draw: Any, study: Any, seen: Seen, bounds: tuple[int, int]) -> None:
        async with EngineClient(url) as client:
            whole = draw(client)

            async def timed(step: int, name: str) -> Sequence[Sample]:
                started = time.perf_counter()
                found = await whole(step, name)
                seen.drawing_s.append(time.perf_counter() - started)
                return found

            handover = EngineHandover(self.backend, client, self.adapters, "benchmark")
            await run_steps(timed, study, handover, *bounds)

    def _study(self, batch: Batch, threads: int, optimizer: AdamConfig, every: int, seen: Seen) -> None:
        torch.set_num_threads(1 if every else threads)  # the clerk is too small for two
        started = time.perf_counter()
        study_groups(self.backend, RULE, optimizer, batch)
        seen.ends.append(time.perf_counter())
        seen.studying_s.append(seen.ends[-1] - started)
        seen.staleness.append(batch.staleness)
        if every and (batch.step + 1) % every == 0:
            seen.success.append(clerk.success(self.backend))


@contextmanager
def engines(folder: Path, scratch: Path, threads: Sequence[int], dtype: str) -> Iterator[dict[int, tuple[str, int]]]:
    """One for each number of threads, in processes that start side by side."""
    (scratch / "adapters").mkdir()
    words = ["-m", "nightschool.engine", "--model", str(folder), "--port", "0", "--dtype", dtype, "--capacity", "256"]
    words += ["--adapters", str(scratch / "adapters"), "--kept-mb", "64"]
    with ExitStack() as open_ones:
        started = {}
        for number in threads:
            log = scratch / f"engine-{number}.log"
            started[number] = log, open_ones.enter_context(child(words, log, OMP_NUM_THREADS=str(number)))
        found = {}
        for number, (log, process) in started.items():
            url = re.search(r"url=(\S+)", first_line(process, log))
            assert url is not None
            found[number] = url.group(1), process.pid
        yield found


def processor_s(process: int) -> float:
    """Seconds of processor time that a process has taken, all its threads together."""
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def writers(seed: int, max_tokens: int) -> Any:
    """Short stories; a reply is the better the more different words it has."""

    def of(client: EngineClient) -> Draw:
        async def draw(step: int, name: str) -> list[Sample]:
            topics = random.Random(f"{seed} {step}").sample(TOPICS, GROUPS)
            told = [
                ({"role": "user", "content": f"Tell a short story about {topic}, in plain words."},) for topic in topics
            ]
            tasks = [Task(topic, told[n], GROUP_SIZE, MAX_TOKENS, 100 * step + n) for n, topic in enumerate(topics)]
            groups = await draw_groups(client, name, tasks)
            rows = [(reply.sample, len(set(reply.message["content"].split()))) for group in groups for reply in group]
            return [replace(sample, reward=words / max_tokens) for sample, words in rows]

        return draw

    return of


def customers(seed: int) -> Any:
    """Requests of the clerk's customers; a reply is right or wrong."""

    def of(client: EngineClient) -> Draw:
        async def draw(step: int, name: str) -> list[Sample]:
            asked = random.Random(f"{seed} {step}").sample(clerk.LIVE, CLERK_GROUPS)
            tasks = []
            for number, one in enumerate(asked):
                at = 10_000 * seed + 100 * step + number
                tasks.append(Task(one.text, one.messages, GROUP_SIZE, clerk.MAX_TOKENS, at))
            groups = await draw_groups(client, name, tasks)
            return [
                replace(reply.sample, reward=float(reply.message["content"] == clerk.REPLY.format(one.desk)))
                for one, group in zip(asked, groups, strict=True)
                for reply in group
            ]

        return draw

    return of


def play_round(number: int) -> dict[str, Any]:
    """In turns and one other arm, after a short step of each."""
    arms = [ARMS[0], ARMS[1 + number % (len(ARMS) - 1)]]
    arms = arms if number % 2 else arms[::-1]
    folder, found = find_model(MODEL), {}
    with tempfile.TemporaryDirectory() as made:
        scratch = Path(made)
        with engines(folder, scratch, sorted({arm.threads for arm in arms}), "bfloat16") as started:
            backend = LocalBackend(load_base(folder, torch.bfloat16, "cpu"), LoraConfig())
            bench = Bench(backend, started, scratch / "adapters")
            tell("ready")
            for arm in arms:
                bench.run(arm, writers(-1, 4), OPTIMIZER, 1)
            for arm in arms:
                found[arm.name] = bench.run(arm, writers(number, MAX_TOKENS), OPTIMIZER, STEPS)
                tell(f"{arm.name}: {found[arm.name]['wall_s']:.1f} s")
    return found


def play_seed(seed: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as made:
        scratch = Path(made)
        backend = clerk.hire(scratch, seed)
        before = clerk.success(backend)
        with engines(scratch / f"clerk-{seed}", scratch, [1], "float32") as started:
            bench = Bench(backend, {1: started[1], 2: started[1]}, scratch / "adapters")
            for arm in ARMS:
                if arm.name in LEARNED:
                    found[arm.name] = bench.run(arm, customers(seed), CLERK_OPTIMIZER, CLERK_STEPS, EVERY)
                    found[arm.name]["before"] = before
                    tell(f"seed {seed}, {arm.name}: {before:.3f} to {found[arm.name]['success'][-1]:.3f}")
    return found


def kept(kind: str, count: int, play: Any) -> list[dict[str, Any]]:
    """What `play(0)` to `play(count - 1)` found, now or earlier."""
    folder = OUT / "overlap"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        path = folder / f"{kind}-{number}.json"
        if not path.exists():
            facts = {"load": os.getloadavg()[0], "nice": os.nice(0), "steps": play(number)}
            path.write_text(json.dumps(facts, indent=1) + "\n")
    return [json.loads((folder / f"{kind}-{number}.json").read_text())["steps"] for number in range(count)]


def speed(rounds: Sequence[dict[str, Any]]) -> list[Row]:
    rows = []
    turns = [one[TURNS] for one in rounds]
    for arm in ARMS:
        runs = [one[arm.name] for one in rounds if arm.name in one]
        if not runs:
            continue
        steps = together(runs, "step_s")
        sides = ", ".join(
            f"{what} {median(together(runs, key)):.2f} / {min(together(runs, key)):.2f} s"
            for what, key in (("drawing", "drawing_s"), ("studying", "studying_s"))
        )
        rows.append(Row(f"{arm.name}: steps per minute, median / fastest", per_minute(steps), note=sides))
        taken = [(run["trainer_s"] + run["engine_s"]) / STEPS for run in runs]
        used = [100 * STEPS * work / run["wall_s"] / CORES for work, run in zip(taken, runs, strict=True)]
        note = f"{median(used):.0f} % of all cores in use"
        rows.append(Row(f"{arm.name}: processor seconds a step", f"{median(taken):.2f}", note=note))
        if arm.name != TURNS:
            beside = [one[TURNS] for one in rounds if arm.name in one]
            typical = ratio_of([median(run["step_s"]) for run in beside], [median(run["step_s"]) for run in runs])
            fastest = min(together(turns, "step_s")) / min(steps)
            note = f"fastest step over fastest step: {fastest:.2f}"
            rows.append(Row(f"{arm.name}: speed over turns", "{:.2f} [{:.2f}, {:.2f}]".format(*typical), note=note))
    return rows


def together(runs: Sequence[dict[str, Any]], key: str) -> list[float]:
    return [value for run in runs for value in run[key]]


def per_minute(seconds: Sequence[float]) -> str:
    return f"{60 / median(seconds):.1f} / {60 / min(seconds):.1f}"


def learning(seeds: Sequence[dict[str, Any]]) -> list[Row]:
    rows, ones = [], [1] * len(seeds)
    for name in LEARNED:
        arm, runs = f"clerk, {name.partition(',')[0]}", [seed[name] for seed in seeds]
        for place in range(CLERK_STEPS // EVERY):
            mean, half = mean_of_clusters([run["success"][place] for run in runs], ones)
            rows.append(Row(f"{arm}: right after {(place + 1) * EVERY} steps", f"{mean:.3f} ± {half:.3f}"))
        taken = [1000 * (run["trainer_s"] + run["engine_s"]) / CLERK_STEPS for run in runs]
        note = f"{fmean(together(runs, 'staleness')):.2f} versions behind"
        rows.append(Row(f"{arm}: processor milliseconds a step", f"{fmean(taken):.0f}", note=note))
        if name != TURNS:
            turns = [seed[TURNS] for seed in seeds]
            lost = [run["success"][-1] - other["success"][-1] for run, other in zip(runs, turns, strict=True)]
            faster = [other["wall_s"] / run["wall_s"] for run, other in zip(runs, turns, strict=True)]
            rows.append(Row(f"{arm}: right, minus in turns", "{:+.3f} ± {:.3f}".format(*mean_of_clusters(lost, ones))))
            rows.append(Row(f"{arm}: speed over turns", "{:.2f} ± {:.2f}".format(*mean_of_clusters(faster, ones))))
    return rows


def main() -> None:
    asked = options_of(__doc__, rounds=8, seeds=5).parse_args()
    machine = machine_facts()
    rounds, seeds = kept("round", asked.rounds, play_round), kept("seed", asked.seeds, play_seed)
    rows = (speed(rounds) if rounds else []) + (learning(seeds) if seeds else [])
    report("speed_overlap", asked, rows, machine)


if __name__ == "__main__":
    main()
