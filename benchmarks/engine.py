"""Tokens per second of the embedded engine against transformers' `generate`, in turns on the same machine.

    python benchmarks/engine.py [--rounds 3] [--tokens 48] [--prompt 128] [--threads 0] [--seed 0] [--json]

1, 8 and 32 requests at once, over HTTP, each with the same prompt of 128 tokens and four tokens of its own, all of
them as long as asked; `generate` gets the same prompts as one batch. Whole requests are timed, prompts
included, in the number format that the engine chooses for this processor. The two take turns, so that
whatever else runs on the machine hits both; the ratio is the median over rounds. The engine also runs
through an adapter on all linear layers. With `--threads 1` both run on one thread each, which is the fairer
comparison on a machine whose cores are busy: threads that wait for each other suffer most.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # as the engine sets it; read when torch is loaded

import aiohttp
import torch
from common import Row, at_least, child, first_line, machine_facts, options_of, random_adapter, report, tell
from transformers import AutoModelForCausalLM

from nightschool.models.base import load_base, quiet
from nightschool.models.fetch import find_model
from nightschool.models.lora import LoraModel

MODEL = "smollm2-135m"
SIZES = (1, 8, 32)
OWN_TOKENS = 4
BOUND = 1.5


@dataclass(slots=True)
class Speeds:
    """Tokens per second, one number a round."""

    engine: list[float] = field(default_factory=list)
    adapter: list[float] = field(default_factory=list)
    generate: list[float] = field(default_factory=list)


def prompts_of(size: int, length: int, dice: random.Random) -> list[list[int]]:
    """Prompts of one length that share all but their last tokens."""
    shared = [dice.randrange(1000, 20_000) for _ in range(length)]
    return [[*shared, *(dice.randrange(1000, 20_000) for _ in range(OWN_TOKENS))] for _ in range(size)]


async def ask(url: str, model: str, prompts: Sequence[list[int]], tokens: int) -> float:
    """Tokens per second of all prompts at once."""
    body = {"model": model, "max_tokens": tokens, "ignore_eos": True}

    async def one(session: aiohttp.ClientSession, prompt: list[int]) -> int:
        async with session.post("/v1/completions", json={**body, "prompt": prompt}) as response:
            reply = await response.json()
            return reply["usage"]["completion_tokens"]

    async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(None)) as session:
        started = time.perf_counter()
        counts = await asyncio.gather(*(one(session, prompt) for prompt in prompts))
        return sum(counts) / (time.perf_counter() - started)


async def load_adapter(url: str) -> None:
    async with aiohttp.ClientSession(url) as session:
        body = {"lora_name": "random", "lora_path": "random"}
        async with session.post("/v1/load_lora_adapter", json=body) as response:
            response.raise_for_status()


@torch.inference_mode()
def generate(network: Any, prompts: Sequence[list[int]], tokens: int) -> float:
    """Tokens per second of one batch through transformers' own generation."""
    ids = torch.tensor(prompts)
    started = time.perf_counter()
    out = network.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        temperature=1.0,
        top_k=0,
        min_new_tokens=tokens,
        max_new_tokens=tokens,
    )
    return out[:, ids.shape[1] :].numel() / (time.perf_counter() - started)


def measure(url: str, network: Any, asked: Any) -> dict[int, Speeds]:
    """All rounds. A first, untimed one warms both up."""
    dice = random.Random(asked.seed)
    speeds = {size: Speeds() for size in SIZES}
    for size in SIZES:
        prompts = prompts_of(size, asked.prompt, dice)
        asyncio.run(ask(url, "base", prompts, 4))
        generate(network, prompts, 4)
    for turn in range(asked.rounds):
        for size, found in speeds.items():
            prompts = prompts_of(size, asked.prompt, dice)
            found.engine.append(asyncio.run(ask(url, "base", prompts, asked.tokens)))
            found.adapter.append(asyncio.run(ask(url, "random", prompts, asked.tokens)))
            found.generate.append(generate(network, prompts, asked.tokens))
            rates = ", ".join(f"{name} {values[-1]:.0f}" for name, values in asdict(found).items())
            tell(f"round {turn + 1}, {size} at once, tokens/s: {rates}")
    return speeds


def rows_of(speeds: dict[int, Speeds]) -> list[Row]:
    rows = []
    for size, found in speeds.items():
        medians = {name: statistics.median(getattr(found, name)) for name in ("engine", "adapter", "generate")}
        best = {name: max(getattr(found, name)) for name in medians}
        note = "best " + ", ".join(f"{name} {value:.0f}" for name, value in best.items())
        for name, value in medians.items():
            rows.append(Row(f"{size} at once, {name}, tokens/s", f"{value:.0f}"))
        ratio = statistics.median(ours / theirs for ours, theirs in zip(found.engine, found.generate, strict=True))
        name = f"{size} at once, engine / generate"
        rows.append(at_least(name, ratio, BOUND, note) if size == max(SIZES) else Row(name, f"{ratio:.2f}", note=note))
    return rows


def main() -> None:
    asked = options_of(__doc__, rounds=3, tokens=48, prompt=128, threads=0, seed=0).parse_args()
    machine = machine_facts()
    threads = {"OMP_NUM_THREADS": str(asked.threads)} if asked.threads else {}
    torch.set_num_threads(asked.threads or torch.get_num_threads())
    folder = find_model(MODEL)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        base = load_base(folder, device="cpu")
        random_adapter(scratch / "adapters" / "random", LoraModel(base.network), asked.seed)
        dtype = base.dtype
        del base
        words = ["-m", "nightschool.engine", "--model", str(folder), "--port", "0", "--device", "cpu"]
        log = scratch / "engine.log"
        with child([*words, "--adapters", str(scratch / "adapters")], log, **threads) as process:
            found = re.search(r"url=(\S+)", first_line(process, log))
            assert found is not None
            url = found.group(1)
            asyncio.run(load_adapter(url))
            with quiet():
                network = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True).eval()
            speeds = measure(url, network, asked)
    rates = {str(size): asdict(found) for size, found in speeds.items()}
    report("engine", asked, rows_of(speeds), machine, dtype=str(dtype), tokens_per_s=rates)


if __name__ == "__main__":
    main()
