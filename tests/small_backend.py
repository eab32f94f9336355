"""A backend on a tiny model with an adapter that says something, and the gradient it has gathered."""

from __future__ import annotations

from pathlib import Path

import torch

from nightschool.models.base import load_base
from nightschool.models.lora import LoraConfig
from nightschool.training.local import POLICY, LocalBackend


def small_backend(folder: Path, token_budget: int = 4096) -> LocalBackend:
    made = LocalBackend(load_base(folder, torch.float32, "cpu"), LoraConfig(rank=4, alpha=8), token_budget)
    made.open(None)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # B = 0 would leave half of the gradients at zero
        for parameter in made.lora.parameters(POLICY):
            parameter.normal_(0, 0.2, generator=generator)
    return made


def gathered(made: LocalBackend) -> torch.Tensor:
    """The policy's gradient, flat; it is dropped."""
    found = torch.cat([p.grad.flatten() for p in made.lora.parameters(POLICY) if p.grad is not None])
    made._drop_gradient()
    return found
