"""Out-of-distribution probes: does the candidate still speak and know what the incumbent did?

The set in `probes.jsonl` is general: knowledge, arithmetic, rewriting, small talk, instructions, other trades.
Every item is scored by the likelihood of its reference answer; a sample is also answered, greedily. All of it
over the engine's HTTP interface.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from nightschool.errors import UpstreamError
from nightschool.gate.rule import PROBE_ANSWERS, PROBE_LIKELIHOOD
from nightschool.gate.suites import Pairs
from nightschool.types import Json

SHIPPED = Path(__file__).with_name("probes.jsonl")
NUM_ANSWERED = 24
ANSWER_TOKENS = 40
CONCURRENCY = 32


@dataclass(frozen=True, slots=True)
class Probe:
    """One question with a reference answer. `accept`: any of these words makes an answer right."""

    id: str
    kind: str
    messages: tuple[Json, ...]
    reference: str
    accept: tuple[str, ...]


class Reply(Protocol):
    status: int

    async def read(self) -> bytes: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_exc: object) -> None: ...


class ProbeEngine(Protocol):
    """What probing needs of an engine; `upstream.client.EngineClient` is one."""

    async def tokenize(self, request: Json) -> Sequence[int]: ...

    async def score(self, model: str, prompt_ids: Sequence[int], completion_ids: Sequence[int]) -> list[float]: ...

    async def chat(self, body: bytes) -> Reply: ...


def load_probes(path: Path = SHIPPED) -> tuple[Probe, ...]:
    """The probe set, one JSON object a line."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return tuple(
        Probe(row["id"], row["kind"], tuple(row["messages"]), row["reference"], tuple(row["accept"])) for row in rows
    )


def answered_sample(probes: Sequence[Probe], size: int = NUM_ANSWERED) -> tuple[Probe, ...]:
    """The items that are also answered: always the same ones, taken from the kinds in turn."""
    kinds: dict[str, list[Probe]] = defaultdict(list)
    for probe in probes:
        if probe.accept:
            kinds[probe.kind].append(probe)
    most = max((len(group) for group in kinds.values()), default=0)
    in_turn = [group[rank] for rank in range(most) for group in kinds.values() if rank < len(group)]
    return tuple(in_turn[:size])


async def run_probes(
    engine: ProbeEngine, candidate: str, incumbent: str, probes: Sequence[Probe] | None = None
) -> tuple[Pairs, Pairs]:
    """Score and answer the probes under both policies; returns the two suites that `close_exam` expects.

    `candidate` and `incumbent` are names the engine serves: loaded adapters, or its base model.

    Units: mean log-probability per token of the reference, in nats; right answers as 1, others as 0.
    Raises:
        UpstreamError: the engine failed on an item; nothing is counted against a policy for that.
    """
    items = load_probes() if probes is None else tuple(probes)
    gate = asyncio.Semaphore(CONCURRENCY)

    async def scored(probe: Probe) -> tuple[str, float, float]:
        async with gate:
            prompt, reference = await _encode(engine, candidate, probe)
            mine = await engine.score(candidate, prompt, reference)
            theirs = await engine.score(incumbent, prompt, reference)
            return probe.id, sum(mine) / len(mine), sum(theirs) / len(theirs)

    async def answered(probe: Probe) -> tuple[str, float, float]:
        async with gate:
            mine, theirs = await asyncio.gather(*(_answer(engine, name, probe) for name in (candidate, incumbent)))
            return probe.id, float(accepts(probe, mine)), float(accepts(probe, theirs))

    # answers take longest: they begin at once, and what is only scored fills the gaps
    answers, likelihoods = await asyncio.gather(
        asyncio.gather(*(answered(probe) for probe in answered_sample(items))),
        asyncio.gather(*(scored(probe) for probe in items)),
    )
    return Pairs(PROBE_LIKELIHOOD, tuple(likelihoods)), Pairs(PROBE_ANSWERS, tuple(answers))


def accepts(probe: Probe, answer: str) -> bool:
    """Whether the answer holds one of the accepted phrases, as whole words, whatever the case."""
    text = answer.casefold()
    return any(re.search(rf"(?<!\w){re.escape(phrase.casefold())}(?!\w)", text) for phrase in probe.accept)


async def _encode(engine: ProbeEngine, model: str, probe: Probe) -> tuple[Sequence[int], Sequence[int]]:
    prompt = await engine.tokenize({"model": model, "messages": list(probe.messages), "add_generation_prompt": True})
    reference = await engine.tokenize({"model": model, "prompt": probe.reference, "add_special_tokens": False})
    return prompt, reference


async def _answer(engine: ProbeEngine, model: str, probe: Probe) -> str:
    request = {"model": model, "messages": list(probe.messages), "temperature": 0, "max_tokens": ANSWER_TOKENS}
    with await engine.chat(json.dumps(request).encode()) as reply:
        body = await reply.read()
    try:
        content = json.loads(body)["choices"][0]["message"].get("content")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UpstreamError(
            f"Probe {probe.id} was not answered.",
            f"The engine replied {reply.status}: {body[:200].decode('utf-8', 'replace')}",
            "nightschool doctor",
        ) from error
    return content or ""
