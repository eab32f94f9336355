"""Models that say what a test needs: taught by a few steps, or with their sampler told the words."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from nightschool.curation.written import render
from nightschool.engine import scheduler
from nightschool.models.base import load_base
from nightschool.models.lora import LoraConfig
from nightschool.objectives.loss import Loss
from nightschool.releases.manifest import Manifest
from nightschool.rendering.renderer import Renderer
from nightschool.training.backend import AdamConfig
from nightschool.training.local import LocalBackend
from nightschool.types import Json

MAX_STEPS = 100
LEARNED = -0.2  # log-probability of every token of the lesson; below log(1/2) another could be likelier
AGENT = "clerk"
SYSTEM: Json = {"role": "system", "content": "You answer for the shop."}
WISH: Json = {"role": "user", "content": "Where is order 7?"}
ARGUMENTS = '{"order": "7"}'
CALL = f'<tool_call>{{"name": "track", "arguments": {ARGUMENTS}}}</tool_call>'
RESULT = "on its way"
ANSWER = "Your order is on its way."
TOOL: Json = {
    "type": "function",
    "function": {
        "name": "track",
        "description": "Where an order is.",
        "parameters": {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]},
    },
}
CALLING: Json = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "track", "arguments": ARGUMENTS}}],
}
LESSON: Json = {
    "messages": [
        SYSTEM,
        WISH,
        CALLING,
        {"role": "tool", "tool_call_id": "c", "content": RESULT},
        {"role": "assistant", "content": ANSWER},
    ],
    "tools": [TOOL],
}


def teach(model: Path, folder: Path, learning_rate: float, min_steps: int = 0) -> Manifest:
    """An adapter of `model` in `folder` that calls `track` when asked for order 7, and tells its result."""
    base = load_base(model, torch.float32, "cpu")
    backend = LocalBackend(base, LoraConfig(rank=8, alpha=16))
    backend.open(None)
    lesson = [render(LESSON, base.renderer, "lesson")]
    for step in range(MAX_STEPS):
        [scores] = backend.forward_backward(lesson, {"": Loss("sft")}).logprobs
        if min(score for score in scores if score is not None) > LEARNED and step >= min_steps:
            break
        backend.optim_step(AdamConfig(learning_rate=learning_rate), step)
    else:
        raise AssertionError("it has not learned its lesson")
    backend.save_adapter(folder)
    fits = backend.identity
    digests = (fits.base_digest, fits.tokenizer_digest, fits.template_digest)
    return Manifest(AGENT, *digests, fits.targets, None, None, "test", None)


def speak(monkeypatch: pytest.MonkeyPatch, renderer: Renderer, replies: Iterable[str]) -> None:
    """Make the embedded engines of this process write `replies`, one request after the other, in every row."""
    words = iter([token for reply in replies for token in renderer.completion_ids(reply)])
    draw = scheduler.draw

    def forced(logits: torch.Tensor, *rest: Any) -> Any:
        chosen = torch.full_like(logits, -50.0)
        chosen[:, next(words)] = 50.0
        return draw(chosen, *rest)

    monkeypatch.setattr(scheduler, "draw", forced)
