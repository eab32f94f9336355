"""Tokens per second of requests that share a prompt: the engine, transformers' `generate`, and vLLM on this processor.

    python benchmarks/speed/decode.py [--vllm PYTHON] [--rounds 3] [--tokens 32] [--threads 0] [--seed 0] [--json]

Requests at once, each with the same prompt of 512 (or 128) tokens and four tokens of its own, all of them as long as
asked, at temperature 1 in bfloat16. The engine and vLLM are servers of their own and are asked over HTTP, with the
settings they start with (vLLM: prefix caching on; but all cores, where it would take all but one); `generate` gets the
same prompts as one batch. Nobody else computes while one does. In each round, "known" is the time of requests whose
shared prompt was seen before, which for `generate` is a cache of it, filled outside the clock; "new" is that of a
prompt nobody has seen. The engine also runs through an adapter on all linear layers.

Each takes its turn in every round, so whatever else runs on the machine hits all; a ratio is that of the medians over
rounds, its interval a bootstrap over them. vLLM takes part where --vllm, or NIGHTSCHOOL_VLLM, names a python that has
it; `.ci/vllm.sh` makes one. With `--threads 1` all run on one thread, the fairer comparison where cores are busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

import aiohttp
import torch
from common import (
    STOP_S,
    Row,
    at_least,
    child,
    first_line,
    machine_facts,
    options_of,
    random_adapter,
    ratio_of,
    report,
    tell,
)
from transformers import AutoModelForCausalLM

from nightschool.models.base import load_base, quiet
from nightschool.models.fetch import find_model
from nightschool.models.lora import LoraModel

MODEL = "smollm2-135m"
CASES = ((1, 512), (8, 512), (32, 512), (32, 128))  # requests at once, shared tokens
OWN_TOKENS = 4
BOUNDS = {(1, 512): 1.2, (32, 512): 3.0}  # of known prompts
READY_S = 600.0


@dataclass(frozen=True, slots=True)
class Work:
    """Prompts with one beginning, twice: the second time it is known."""

    shared: list[int]
    new: list[list[int]]
    known: list[list[int]]


Side = Callable[[Work, int], tuple[float, float]]  # seconds of new and of known prompts, for so many tokens


def work_of(size: int, length: int, dice: random.Random) -> Work:
    shared = [dice.randrange(1000, 20_000) for _ in range(length)]
    new, known = (
        [[*shared, *(dice.randrange(1000, 20_000) for _ in range(OWN_TOKENS))] for _ in range(size)] for _ in range(2)
    )
    return Work(shared, new, known)


def server(url: str, model: str) -> Side:
    async def ask(prompts: Sequence[list[int]], tokens: int) -> float:
        body = {"model": model, "max_tokens": tokens, "ignore_eos": True, "temperature": 1.0, "top_p": 1.0}

        async def one(session: aiohttp.ClientSession, prompt: list[int]) -> None:
            async with session.post("/v1/completions", json={**body, "prompt": prompt}) as response:
                reply = await response.json()
                assert reply["usage"]["completion_tokens"] == tokens, reply

        async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(None)) as session:
            started = time.perf_counter()
            await asyncio.gather(*(one(session, prompt) for prompt in prompts))
            return time.perf_counter() - started

    return lambda work, tokens: (asyncio.run(ask(work.new, tokens)), asyncio.run(ask(work.known, tokens)))


def generate(network: Any) -> Side:
    @torch.inference_mode()
    def run(prompts: Sequence[list[int]], tokens: int, cache: Any) -> float:
        ids = torch.tensor(prompts)
        settings = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "cache": cache}
        started = time.perf_counter()
        out = network.generate(
            ids, attention_mask=torch.ones_like(ids), min_new_tokens=tokens, max_new_tokens=tokens, **settings
        )
        assert out.shape[1] == ids.shape[1] + tokens
        return time.perf_counter() - started

    @torch.inference_mode()
    def both(work: Work, tokens: int) -> tuple[float, float]:
        new = run(work.new, tokens, None)
        cache = network(torch.tensor([work.shared]), use_cache=True, logits_to_keep=1).cache
        cache = copy.deepcopy(cache)
        cache.batch_repeat_interleave(len(work.known))
        return new, run(work.known, tokens, cache)

    return both


@contextlib.contextmanager
def embedded(folder: Path, scratch: Path, threads: dict[str, str]) -> Iterator[str]:
    """The engine as `python -m nightschool.engine`, with an adapter called `random`; yields its URL."""
    random_adapter(scratch / "adapters" / "random", LoraModel(load_base(folder, torch.bfloat16, "cpu").network), 0)
    words = ["-m", "nightschool.engine", "--model", str(folder), "--port", "0", "--device", "cpu"]
    words += ["--dtype", "bfloat16", "--adapters", str(scratch / "adapters")]
    log = scratch / "engine.log"
    with child(words, log, **threads) as process:
        found = re.search(r"url=(\S+)", first_line(process, log))
        assert found is not None
        asyncio.run(load_adapter(found.group(1)))
        yield found.group(1)


async def load_adapter(url: str) -> None:
    async with aiohttp.ClientSession(url) as session:
        body = {"lora_name": "random", "lora_path": "random"}
        async with session.post("/v1/load_lora_adapter", json=body) as response:
            response.raise_for_status()


@contextlib.contextmanager
def vllm(python: str, folder: Path, scratch: Path, threads: dict[str, str]) -> Iterator[str]:
    """vLLM's server, for as many requests and tokens as are asked; yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    words = [python, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
    words += ["--model", str(folder), "--served-model-name", "base", "--dtype", "bfloat16"]
    words += ["--max-model-len", "2048", "--max-num-seqs", str(max(size for size, _ in CASES))]
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    own = {"HOME": str(scratch), "XDG_CACHE_HOME": str(scratch / "cache"), "HF_HUB_OFFLINE": "1"}
    own |= {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_NO_USAGE_STATS": "1", **threads}
    own.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", os.environ.get("VLLM_CPU_NUM_OF_RESERVED_CPU", "0"))  # else one core
    log = scratch / "vllm.log"
    with log.open("wb") as said:
        process = subprocess.Popen(words, stdout=said, stderr=said, env=kept | own, start_new_session=True)
    try:
        url = f"http://127.0.0.1:{port}"
        asyncio.run(wait_ready(url, process, log))
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):  # its engine is a child of its own
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def wait_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + READY_S
    async with aiohttp.ClientSession(url) as session:
        while time.monotonic() < until and process.poll() is None:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get("/health") as response:
                    if response.ok:
                        return
            await asyncio.sleep(0.5)
    raise RuntimeError(f"vLLM did not come up:\n{log.read_text(errors='replace')[-4000:]}")


Speeds = dict[tuple[str, str], list[float]]  # tokens per second of (side, new or known), one number a round


def measure(sides: dict[str, Side], asked: Any) -> dict[tuple[int, int], Speeds]:
    """All rounds; who goes first moves on by one each time. A first, untimed one warms all up."""
    dice = random.Random(asked.seed)
    found: dict[tuple[int, int], Speeds] = {case: {} for case in CASES}
    for size, length in CASES:
        for side in sides.values():
            side(work_of(size, length, dice), 2)
    tell("warm")
    for turn in range(asked.rounds):
        for (size, length), speeds in found.items():
            work = work_of(size, length, dice)
            order = list(sides)
            for name in order[turn % len(order) :] + order[: turn % len(order)]:
                for kind, seconds in zip(("new", "known"), sides[name](work, asked.tokens), strict=True):
                    speeds.setdefault((name, kind), []).append(size * asked.tokens / seconds)
            rates = ", ".join(f"{name} {kind} {values[-1]:.0f}" for (name, kind), values in speeds.items())
            tell(f"round {turn + 1}, {size} at once, {length} shared, tokens/s: {rates}")
    return found


def rows_of(found: dict[tuple[int, int], Speeds]) -> list[Row]:
    rows = []
    for (size, length), speeds in found.items():
        case = f"{size} at once, {length} shared"
        for (name, kind), values in speeds.items():
            rows.append(Row(f"{case}, {name}, {kind}, tokens/s", f"{statistics.median(values):.0f}"))
        for (name, kind), values in speeds.items():
            if name in ("engine", "adapter"):
                continue
            ratio, low, high = ratio_of(speeds["engine", kind], values)
            label, note = f"{case}, engine / {name}, {kind}", f"95 %: {low:.2f} to {high:.2f}"
            bound = BOUNDS.get((size, length)) if kind == "known" else None
            rows.append(at_least(label, ratio, bound, note) if bound else Row(label, f"{ratio:.2f}", note=note))
    return rows


def main() -> None:
    parser = options_of(__doc__, rounds=3, tokens=32, threads=0, seed=0)
    parser.add_argument("--vllm", default=os.environ.get("NIGHTSCHOOL_VLLM"), help="a python that has vLLM")
    asked = parser.parse_args()
    machine = machine_facts()
    threads = {"OMP_NUM_THREADS": str(asked.threads)} if asked.threads else {}
    torch.set_num_threads(asked.threads or torch.get_num_threads())
    folder = find_model(MODEL)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the servers end with the stack
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(embedded(folder, scratch, threads))
        sides = {"engine": server(url, "base"), "adapter": server(url, "random")}
        with quiet():
            network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, local_files_only=True).eval()
        sides["generate"] = generate(network)
        if asked.vllm:
            tell("waiting for vLLM")
            sides["vLLM"] = server(stack.enter_context(vllm(asked.vllm, folder, scratch, threads)), "base")
        found = measure(sides, asked)
    rates = {
        f"{size} x {length}": {" ".join(of): v for of, v in speeds.items()} for (size, length), speeds in found.items()
    }
    report("speed_decode", asked, rows_of(found), machine, tokens_per_s=rates)


if __name__ == "__main__":
    main()
