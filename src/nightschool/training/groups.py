"""Groups of replies to one request: drawn from an engine as rows, and studied for who drew them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from nightschool.errors import UpstreamError
from nightschool.objectives import grpo
from nightschool.objectives.clipping import BEHAVIOR
from nightschool.objectives.legality import refused
from nightschool.objectives.rollouts import TRUNCATED
from nightschool.training.backend import AdamConfig, Backend
from nightschool.training.overlap import Batch
from nightschool.types import UNTOLD_LOGPROB, Json, Sample
from nightschool.upstream.client import EngineClient


@dataclass(frozen=True, slots=True)
class Task:
    """A request that a group of replies is drawn to. The whole distribution is sampled, at `temperature`."""

    id: str
    messages: tuple[Json, ...]
    group_size: int
    max_tokens: int
    seed: int
    temperature: float = 1.0


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply of a group, and its row, without a reward."""

    message: Json
    sample: Sample


async def draw_groups(client: EngineClient, name: str, tasks: Sequence[Task]) -> list[list[Reply]]:
    """The group of each task, drawn side by side by the adapter `name`. An error ends all requests.

    Raises:
        UpstreamError: the engine refuses, or gives no token ids.
    """
    asked = [asyncio.ensure_future(_draw(client, name, task)) for task in tasks]
    try:
        return await asyncio.gather(*asked)
    finally:
        for one in asked:
            one.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


def study_groups(backend: Backend, rule: grpo.GrpoRule, optimizer: AdamConfig, batch: Batch) -> Mapping[str, float]:
    """One step on a batch of groups, the policy before it as the anchor; figures of the weights.

    Raises:
        RefusedError: an earlier version drew a sample, and nothing in the rule accounts for it.
        TooLittleDataError: the rule leaves nothing to study.
    """
    if batch.staleness and not rule.correction.weighs and rule.clip.against != BEHAVIOR:
        why = f"step {batch.step} has samples of a policy {batch.staleness} versions behind that weigh like fresh ones"
        raise refused("staleness is corrected", why, "Set the rule's correction, or max_staleness to 0.")
    rows = grpo.annotate(batch.samples, rule)
    scored = [replace(row, reference_logprobs=x) for row, x in zip(rows, backend.forward(rows), strict=True)]
    anchored = grpo.after_anchor(scored, rule)
    backend.forward_backward(anchored.samples, {"": grpo.loss(rule)})
    backend.optim_step(optimizer, batch.step)
    return anchored.figures


async def _draw(client: EngineClient, name: str, task: Task) -> list[Reply]:
    asked = {
        "model": name,
        "messages": task.messages,
        "n": task.group_size,
        "max_tokens": task.max_tokens,
        "seed": task.seed,
        "temperature": task.temperature,
        "logprobs": True,
        "return_token_ids": True,
    }
    with await client.chat(orjson.dumps(asked)) as answer:
        raw = await answer.read()
    if answer.status >= 400:
        why = f"It answered {answer.status}: {raw[:500].decode('utf-8', 'replace')}"
        raise UpstreamError(f"The engine drew nothing for {task.id}.", why, "See `nightschool doctor`.")
    reply = orjson.loads(raw)
    if not reply.get("prompt_token_ids") or not all(choice.get("token_ids") for choice in reply["choices"]):
        why = "Its reply has no token ids, and other text than was sampled would be studied."
        raise UpstreamError(f"Nothing can be learned from {task.id}.", why, "Use the embedded engine, or vLLM.")
    return [Reply(choice["message"], _row(reply, choice, name, task)) for choice in reply["choices"]]


def _row(reply: Json, choice: Json, name: str, task: Task) -> Sample:
    prompt, ids = reply["prompt_token_ids"], choice["token_ids"]
    told: list[Any] = (choice.get("logprobs") or {}).get("content") or []
    logprobs = [one.get("logprob") for one in told] if len(told) == len(ids) else [None] * len(ids)
    sampled = (False,) * len(prompt) + (True,) * len(ids)
    cut = float(choice["finish_reason"] == "length")
    return Sample(
        id=f"{task.id}/{choice['index']}",
        token_ids=(*prompt, *ids),
        completion_mask=sampled,
        loss_mask=sampled,
        policy_version=name,
        group_id=task.id,
        annotations={"temperature": task.temperature, TRUNCATED: cut},
        token_annotations={
            BEHAVIOR: (*[None] * len(prompt), *(None if value == UNTOLD_LOGPROB else value for value in logprobs))
        },
    )
