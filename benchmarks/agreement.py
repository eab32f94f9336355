"""Do engine and trainer mean the same by a log-probability?

    python benchmarks/agreement.py [--seed 0] [--tokens 48] [--prose-tokens 80] [--json]

Every ratio that training forms compares numbers of two programs, so the same tokens must get the same
log-probabilities wherever they are computed. Three claims, on the real model:

1. Packed as a prefix forest or one sequence a row, right-padded, in transformers' own classes and
   attention: the largest difference is at most 1e-4 in float32.
2. As the engine sampled them over HTTP (a batch that changes, prefixes reused, a second turn) or as the trainer
   scores them, in float32, at three temperatures, with an adapter and without: at most 1e-4.
3. The same in bfloat16 on ordinary text of the base model: the mean |difference| is at most 0.06, the 99th
   percentile at most 0.25, and the mean signed difference within its 95 % interval of 0 (cluster = sequence).

How to read the last rows: tokens that one of two slightly different distributions drew are a little likelier there,
by about half the mean square of the difference; with enough tokens that alone leaves the interval. What tells a
biased engine from a merely rounded one is the mean importance ratio, which is 1 whatever the rounding.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import torch
from common import (
    Row,
    at_least,
    at_most,
    child,
    covers_zero,
    first_line,
    machine_facts,
    mean_of_clusters,
    options_of,
    random_adapter,
    report,
    tell,
)
from torch import Tensor
from transformers import AutoModelForCausalLM

from nightschool.models.base import load_base, quiet
from nightschool.models.fetch import find_model
from nightschool.models.lora import LoraConfig, LoraModel
from nightschool.training.local import LocalBackend
from nightschool.types import Sample

MODEL = "smollm2-135m"
TEMPERATURES = (0.7, 1.0, 1.3)
FLOAT32_BOUND = 1e-4
MEAN_BOUND, TAIL_BOUND = 0.06, 0.25
LEAST_TOKENS = 2000
PROSE_CHOICES = 2
PADDED_ROWS = 4

SYSTEM = "You answer in plain words. Say what you know, and say so when you do not know."
FOLLOW_UP = "Thank you. Now tell me the same in one short sentence, for a child."
QUESTIONS = (
    "Why does bread rise in the oven?",
    "What should I pack for a week of walking in the mountains?",
    "Explain what an interest rate is.",
    "How did people measure time before there were clocks?",
    "Write two sentences about a lighthouse in winter.",
    "What is the difference between weather and climate?",
)
# Openings of ordinary prose, written for this benchmark.
PROSE = (
    "The ferry left the harbor a little before six, when the gulls were still asleep on the roof of the customs house,",
    "Most people who keep bees will tell you that the first year teaches you patience and the second year teaches you",
    "In the middle of the nineteenth century the railway reached the valley, and within ten years the village had",
    "A good map leaves things out. The person who draws it has to decide which roads matter, which rivers are wide",
    "When my grandmother cooked, she never measured anything. She would stand by the stove with a wooden spoon and",
    "The committee met on Thursday to discuss the budget for the coming year. After a long debate it was agreed that",
    "Glass is made by heating sand until it melts. Early glassmakers discovered that adding ash from burned plants",
    "It had rained for eleven days. The cellar was full, the lower field was a lake, and the old man at the mill said",
    "To learn a language as an adult is to become a child again in public. You know exactly what you want to say, and",
    "The museum's new wing opened last week with an exhibition of clocks, some of them more than four hundred years",
    "Scientists who study sleep have long wondered why animals spend so much of their lives unable to defend",
    "She found the letter in the back of a drawer, folded into a square no bigger than a stamp. It was dated",
    "Every autumn the starlings gather above the reed beds, first a few dozen, then thousands, until the sky itself",
    "The city council has promised to plant five thousand trees before the end of the decade. Residents of the older",
    "There are three ways to cross the desert: the northern road, which is safe and dull; the southern road, which",
    "A violin is built from more than seventy pieces of wood. The front is usually cut from spruce, because it is",
)


@dataclass(frozen=True, slots=True)
class Sampled:
    """A reply as the engine gave it: what it read, what it drew, what it says of that."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    temperature: float

    def as_sample(self, name: str) -> Sample:
        return make_sample(name, (*self.prompt_ids, *self.ids), len(self.prompt_ids), self.temperature)


def make_sample(name: str, token_ids: tuple[int, ...], first: int, temperature: float) -> Sample:
    """A sample whose tokens from place `first` on are scored."""
    mask = tuple(place >= first for place in range(len(token_ids)))
    return Sample(name, token_ids, mask, mask, annotations={"temperature": temperature})


def scored(backend: LocalBackend, samples: Sequence[Sample]) -> list[np.ndarray]:
    """The trainer's log-probabilities, the scored tokens of each sample."""
    rows = backend.forward(samples)
    return [np.array([value for value in row if value is not None]) for row in rows]


def largest(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True))


def forest(backend: LocalBackend) -> list[Sample]:
    """Sequences that share beginnings: a system prompt, questions with several answers, and second turns."""
    renderer = backend.base.renderer
    samples: list[Sample] = []
    for number, question in enumerate(QUESTIONS):
        asked = ({"role": "system", "content": SYSTEM}, {"role": "user", "content": question})
        for text in PROSE[number : number + 2]:
            again = (*asked, {"role": "assistant", "content": text}, {"role": "user", "content": FOLLOW_UP})
            for messages, reply in ((asked, text), (again, PROSE[number + 2])):
                ids = (*renderer.prompt_ids(messages), *renderer.completion_ids(reply))
                temperature = TEMPERATURES[len(samples) % len(TEMPERATURES)]
                samples.append(make_sample(str(len(samples)), ids, 1, temperature))
    return samples


def plain_network(folder: Path, adapter: Path) -> Any:
    """The model in transformers' own classes and attention, with the adapter on its layers for every row."""
    with quiet():
        network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    lora = LoraModel(network)
    lora.load("random", adapter)
    lora.routing.spans = [("random", 0, PADDED_ROWS)]
    return network


@torch.no_grad()
def padded(network: Any, samples: Sequence[Sample]) -> list[np.ndarray]:
    """Log-probabilities of every token but the first, a few right-padded rows at a time."""
    found: list[np.ndarray] = []
    for first in range(0, len(samples), PADDED_ROWS):
        some = samples[first : first + PADDED_ROWS]
        length = max(len(sample.token_ids) for sample in some)
        rows = [[*sample.token_ids, *[0] * (length - len(sample.token_ids))] for sample in some]
        attention_mask = torch.tensor([[place < len(s.token_ids) for place in range(length)] for s in some]).long()
        logits: Tensor = network(input_ids=torch.tensor(rows), attention_mask=attention_mask).logits
        for line, sample in enumerate(some):
            ids = torch.tensor(sample.token_ids[1:])
            values = (logits[line, : len(ids)].float() / sample.annotations["temperature"]).log_softmax(-1)
            found.append(values.gather(1, ids[:, None])[:, 0].double().numpy())
    return found


def packing_rows(folder: Path, adapter: Path, backend: LocalBackend) -> list[Row]:
    """Claim 1."""
    samples = forest(backend)
    packed = scored(backend, samples)
    budget, backend.token_budget = backend.token_budget, 1
    alone = scored(backend, samples)
    backend.token_budget = budget
    count = f"{len(samples)} sequences, {sum(map(len, packed))} tokens"
    return [
        at_most(
            "packed - padded, float32, max |Δ|",
            largest(packed, padded(plain_network(folder, adapter), samples)),
            FLOAT32_BOUND,
            count,
        ),
        at_most(
            "packed - one by one, float32, max |Δ|", largest(packed, alone), FLOAT32_BOUND, "same code, a row each"
        ),
    ]


@contextmanager
def engine(folder: Path, scratch: Path, dtype: str) -> Iterator[str]:
    """The engine as people start it, in a process of its own; yields its URL."""
    words = ["-m", "nightschool.engine", "--model", str(folder), "--port", "0", "--dtype", dtype]
    log = scratch / f"engine-{dtype}.log"
    with child([*words, "--adapters", str(scratch / "adapters")], log) as process:
        found = re.search(r"url=(\S+)", first_line(process, log))
        assert found is not None
        yield found.group(1)


async def post(session: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> dict[str, Any]:
    async with session.post(path, json=body) as response:
        reply = await response.json()
        if response.status != 200:
            raise RuntimeError(f"{path} answered {response.status}: {reply}")
        return reply


async def converse(
    session: aiohttp.ClientSession, model: str, question: str, temperature: float, tokens: int, seed: int
) -> list[Sampled]:
    """Two turns of one conversation; the second reads the first one's reply from the history."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    found = []
    for turn in range(2):
        body = {"model": model, "messages": messages, "temperature": temperature, "max_tokens": tokens}
        body |= {"seed": seed + turn, "logprobs": True, "return_token_ids": True}
        reply = await post(session, "/v1/chat/completions", body)
        choice = reply["choices"][0]
        logprobs = tuple(entry["logprob"] for entry in choice["logprobs"]["content"])
        found.append(Sampled(tuple(reply["prompt_token_ids"]), tuple(choice["token_ids"]), logprobs, temperature))
        messages += [choice["message"], {"role": "user", "content": FOLLOW_UP}]
    return found


async def conversations(
    url: str, models: Sequence[str], tokens: int, seed: int
) -> dict[tuple[str, float], list[Sampled]]:
    """All conversations at once, so that they share the batch; by model and temperature."""
    async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(None)) as session:
        for model in models[1:]:
            await post(session, "/v1/load_lora_adapter", {"lora_name": model, "lora_path": model})
        keys = [(model, temperature) for model in models for temperature in TEMPERATURES]
        asked = [
            converse(session, model, question, temperature, tokens, 1000 * seed + 10 * number)
            for model, temperature in keys
            for number, question in enumerate(QUESTIONS)
        ]
        replies = await asyncio.gather(*asked)
    per_key = len(QUESTIONS)
    return {
        key: [one for reply in replies[place * per_key : (place + 1) * per_key] for one in reply]
        for place, key in enumerate(keys)
    }


def engine_rows(folder: Path, scratch: Path, backend: LocalBackend, tokens: int, seed: int) -> list[Row]:
    """Claim 2. `backend` holds the adapter."""
    with engine(folder, scratch, "float32") as url:
        replies = asyncio.run(conversations(url, ("base", "random"), tokens, seed))
    with_adapter: dict[tuple[str, float], list[np.ndarray]] = {}
    without: dict[tuple[str, float], list[np.ndarray]] = {}
    samples = {key: [one.as_sample(str(n)) for n, one in enumerate(found)] for key, found in replies.items()}
    for key in samples:
        with_adapter[key] = scored(backend, samples[key])
    backend.open(None)
    for key in samples:
        without[key] = scored(backend, samples[key])
    rows = []
    moved: list[np.ndarray] = []
    for key, found in replies.items():
        model, temperature = key
        theirs = [np.array(one.logprobs) for one in found]
        ours = (without if model == "base" else with_adapter)[key]
        name = f"engine - trainer, float32, {'no' if model == 'base' else 'with'} adapter, T = {temperature}, max |Δ|"
        rows.append(at_most(name, largest(ours, theirs), FLOAT32_BOUND, f"{sum(map(len, theirs))} sampled tokens"))
        if model != "base":
            moved += [np.abs(a - b) for a, b in zip(with_adapter[key], without[key], strict=True)]
    change = float(np.concatenate(moved).mean())
    return [*rows, Row("  the adapter itself moves them by, mean |Δ|", f"{change:.3g}", note="so it is not idle")]


async def continuations(url: str, tokens: int, seed: int) -> list[Sampled]:
    """Ordinary text of the base model at temperature 1: every opening continued more than once."""
    common = {"model": "base", "temperature": 1.0, "max_tokens": tokens, "n": PROSE_CHOICES}
    common |= {"logprobs": 0, "return_token_ids": True}
    async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(None)) as session:
        bodies = [{**common, "prompt": text, "seed": 1000 * seed + n} for n, text in enumerate(PROSE)]
        replies = await asyncio.gather(*(post(session, "/v1/completions", body) for body in bodies))
    return [
        Sampled(
            tuple(choice["prompt_token_ids"]),
            tuple(choice["token_ids"]),
            tuple(choice["logprobs"]["token_logprobs"]),
            1.0,
        )
        for reply in replies
        for choice in reply["choices"]
    ]


def rounding_rows(folder: Path, scratch: Path, tokens: int, seed: int) -> tuple[list[Row], dict[str, Any]]:
    """Claim 3, and what the numbers behind it are."""
    with engine(folder, scratch, "bfloat16") as url:
        found = asyncio.run(continuations(url, tokens, seed))
    backend = LocalBackend(load_base(folder, torch.bfloat16, "cpu"), LoraConfig())
    backend.open(None)
    ours = scored(backend, [one.as_sample(str(n)) for n, one in enumerate(found)])
    differences = [np.array(one.logprobs) - mine for one, mine in zip(found, ours, strict=True)]
    every = np.concatenate(differences)
    counts = [len(part) for part in differences]
    signed = mean_of_clusters([float(part.sum()) for part in differences], counts)
    ratios = mean_of_clusters([float(np.expm1(-part).sum()) for part in differences], counts)
    sizes = np.abs(every)
    half_square = float((every**2).mean() / 2)
    rows = [
        at_least("engine - trainer, bfloat16, sampled tokens", len(every), LEAST_TOKENS, f"{len(counts)} sequences"),
        at_most("engine - trainer, bfloat16, mean |Δ|", float(sizes.mean()), MEAN_BOUND),
        at_most("engine - trainer, bfloat16, 99th percentile |Δ|", float(np.percentile(sizes, 99)), TAIL_BOUND),
        covers_zero("engine - trainer, bfloat16, mean Δ", *signed, note="95 %, cluster = sequence"),
        Row("  rounding alone makes the mean Δ about", f"{half_square:+.5f}", note="half the mean square"),
        covers_zero("  mean importance ratio - 1", *ratios, note="0 for an unbiased engine, whatever the rounding"),
    ]
    facts = {"num_tokens": len(every), "mean_abs": float(sizes.mean()), "p99_abs": float(np.percentile(sizes, 99))}
    facts |= {
        "mean": signed[0],
        "half_width": signed[1],
        "half_mean_square": half_square,
        "max_abs": float(sizes.max()),
    }
    facts["mean_logprob"] = float(np.concatenate(ours).mean())
    return rows, facts


def main() -> None:
    asked = options_of(__doc__, seed=0, tokens=48, prose_tokens=80).parse_args()
    machine = machine_facts()
    folder = find_model(MODEL)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        adapter = scratch / "adapters" / "random"
        backend = LocalBackend(load_base(folder, torch.float32, "cpu"), LoraConfig(rank=8, alpha=16))
        random_adapter(adapter, backend.lora, asked.seed)
        backend.open(adapter)
        tell("packed and padded")
        rows = packing_rows(folder, adapter, backend)
        tell("engine and trainer, float32")
        rows += engine_rows(folder, scratch, backend, asked.tokens, asked.seed)
        del backend
        tell("engine and trainer, bfloat16")
        more, facts = rounding_rows(folder, scratch, asked.prose_tokens, asked.seed)
    report("agreement", asked, rows + more, machine, bfloat16=facts)


if __name__ == "__main__":
    main()
