"""What `nightschool plan` says of runs, and what they then take: time of the steps and peak memory, on this processor.

    python benchmarks/speed/plan.py [--steps 4] [--seed 0] [--largest 400] [--json]

Models of several sizes with random weights (what they say does not matter here, and the format is the one that the
processor is fast in), each with two kinds of demonstrations: short ones behind one system prompt, and long ones that
share nothing. Each is planned before its first run, with what the package ships, by the command line; then trained by
the command line. A last plan of the same store, of a model between the largest ones, takes the runs into account.

The time of a step is that of its cores, divided by their number: what else runs on the machine hides little of it. The
wall clock stands beside it. `--largest` leaves out models with more million parameters. The last table prices a run
that others published, on a card that was not measured.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import Row, machine_facts, options_of, report, tell

from nightschool.models.fetch import find_model
from nightschool.models.shapes import Shape, find_shape
from nightschool.planning.speed import PROCESSOR, spread_of

VOCAB = 49152
SIZES = (
    Shape("2m", 4, 128, 4, 2, 32, 384, VOCAB),
    Shape("17m", 12, 256, 4, 2, 64, 768, VOCAB),
    Shape("50m", 20, 384, 6, 3, 64, 1024, VOCAB),
    find_shape("smollm2-135m"),
    find_shape("smollm2-360m"),
)
ROWS, BATCH = 32, 8
KINDS = {"short": (200, 60, 50), "long": (0, 400, 100)}  # words: shared system prompt, request, reply
PUBLISHED_HOURS = (10, 50)  # of one H100, for a 7B model on a narrow domain


@dataclass(frozen=True, slots=True)
class Ran:
    """One run beside its forecast: seconds of the steps by the cores and by the clock, bytes at the peak."""

    model: str
    kind: str
    million: float
    tokens: int
    predicted_s: float
    cores_s: float
    wall_s: float
    predicted_bytes: float
    measured_bytes: float
    share_of_peak: float


def write_model(shape: Shape, folder: Path) -> Path:
    """A folder with random weights of this shape, and a tokenizer that is here."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.ffn,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_width,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=8192,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(find_model("smollm2-135m") / name, folder)
    return folder


def write_rows(kind: str, path: Path, seed: int) -> Path:
    dice = random.Random(f"{seed} {kind}")
    system, request, reply = KINDS[kind]
    head = [{"role": "system", "content": words(system, dice)}] if system else []
    with path.open("w") as file:
        for _ in range(ROWS):
            turns = [{"role": "user", "content": words(request, dice)}]
            turns.append({"role": "assistant", "content": words(reply, dice)})
            file.write(json.dumps({"messages": [*head, *turns]}) + "\n")
    return path


def words(count: int, dice: random.Random) -> str:
    vocabulary = ("order", "refund", "the", "parcel", "where", "is", "my", "late", "address", "change", "please", "to")
    return " ".join(dice.choice(vocabulary) for _ in range(count))


def nightschool(scratch: Path, *given: str) -> dict[str, Any]:
    """What a command answers. Raises: RuntimeError when it fails."""
    line = [sys.executable, "-m", "nightschool", *given, "--json", "--state", str(scratch / "state")]
    done = subprocess.run(line, cwd=scratch, capture_output=True, text=True, env={**os.environ}, check=False)
    if done.returncode:
        raise RuntimeError(f"{line} ended with {done.returncode}: {done.stdout[-1000:]} {done.stderr[-2000:]}")
    return json.loads(done.stdout)["data"]


def run_one(shape: Shape, kind: str, data: Path, scratch: Path) -> Ran:
    """Plan, train, and hold one against the other."""
    from nightschool.planning.memory import ITEM_BYTES

    asked = ["--objective", "sft", "--model", str(scratch / shape.name), "--data", str(data)]
    planned = nightschool(scratch, "plan", *asked)
    trained = nightschool(scratch, "train", *asked, "--agent", "bench", "--start", "base")
    assert planned["dtype"] in ITEM_BYTES
    cores_s = trained["processor_s"] / len(os.sched_getaffinity(0))
    return Ran(
        shape.name,
        kind,
        shape.num_parameters / 1e6,
        round(planned["work"]["trained"]["num"]),
        PROCESSOR.middle * planned["ideal_s"],
        cores_s,
        trained["seconds"],
        planned["memory_bytes"]["total"],
        trained["peak_bytes"],
        planned["operations"] / cores_s / planned["device"][planned["dtype"]],
    )


def rows_of(ran: Sequence[Ran]) -> list[Row]:
    rows = []
    for one in ran:
        name = f"{one.model}, {one.kind}, {one.tokens} tokens"
        note = f"wall {one.wall_s:.1f} s, {100 * one.share_of_peak:.0f} % of the peak"
        rows.append(Row(f"{name}: predicted s", f"{one.predicted_s:.2f}"))
        rows.append(Row(f"{name}: measured / predicted", f"{one.cores_s / one.predicted_s:.2f}", note=note))
        rows.append(Row(f"{name}: memory / predicted", f"{one.measured_bytes / one.predicted_bytes:.2f}"))
    for name, ratios in (
        ("time", [one.cores_s / one.predicted_s for one in ran]),
        ("memory", [one.measured_bytes / one.predicted_bytes for one in ran]),
    ):
        spread = spread_of(ratios)
        if spread is not None:
            text = f"{spread.middle:.2f} [{spread.low:.2f}, {spread.high:.2f}]"
            rows.append(Row(f"{name}, measured / predicted, of the next run, 80 %", text))
        worst = max(ratios, key=lambda ratio: abs(math.log(ratio)))
        rows.append(Row(f"{name}, the farthest", f"{worst:.2f}"))
    return rows


def published(scratch: Path) -> list[Row]:
    """A 7B model on a narrow domain, on one H100: 300 steps of 16 tasks, 8 replies each, 512 + 512 tokens, drawn by the
    engine, gone through once."""
    settings = scratch / "published.toml"
    settings.write_text("[training.grpo.loop]\nepochs = 1\nbatch_size = 128\n")
    numbers = ["--sequences", str(300 * 128), "--group-size", "8", "--prompt", "512", "--completion", "512"]
    told = nightschool(
        scratch, "plan", "--objective", "grpo", "--model", "7b", "--device", "h100", *numbers, "--generate",
        "--token-budget", "4096", "--config", str(settings),
    )  # fmt: skip
    low, middle, high = (told["seconds"][name] / 3600 for name in ("low", "middle", "high"))
    hours = f"{middle:.1f} [{low:.1f}, {high:.1f}]"
    said = f"published {PUBLISHED_HOURS[0]} to {PUBLISHED_HOURS[1]}"
    drawn = told["work"]["drawn"]["num"] / 1e6
    return [Row(f"7B on an H100, {drawn:.0f} M tokens drawn: hours", hours, note=said)]


def main() -> None:
    asked = options_of(__doc__, steps=4, seed=0, largest=400).parse_args()
    machine = machine_facts()
    ran: list[Ran] = []
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        loop = f"[training.sft.loop]\nepochs = 9\nmax_steps = {asked.steps}\nbatch_size = {BATCH}\n"
        (scratch / "nightschool.toml").write_text(loop)
        data = {kind: write_rows(kind, scratch / f"{kind}.jsonl", asked.seed) for kind in KINDS}
        for shape in SIZES:
            if shape.num_parameters > asked.largest * 1e6:
                continue
            write_model(shape, scratch / shape.name)
            for kind, path in data.items():
                ran.append(run_one(shape, kind, path, scratch))
                tell(f"{ran[-1]}")
            shutil.rmtree(scratch / shape.name)
        rows = [*rows_of(ran), *published(scratch)]
    report("plan", asked, rows, machine, runs=[asdict(one) for one in ran])


if __name__ == "__main__":
    main()
