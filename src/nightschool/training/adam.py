"""One optimizer step: Adam, with long gradients cut to a multiple of the usual length."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from nightschool.training.backend import AdamConfig

MEDIAN_OF = 32
MEDIAN_FROM = 4


class Adam:
    """The optimizer of one set of parameters, and the lengths of its recent gradients."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.inner = torch.optim.Adam(self.parameters)
        self.norms: list[float] = []

    def norm(self) -> float | None:
        """Length of the accumulated gradient; `None` without one."""
        gradients = self._gradients()
        if not gradients:
            return None
        return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients])).item()

    def step(self, config: AdamConfig, norm: float) -> bool:
        """Apply the accumulated gradient of length `norm`; returns whether it was cut."""
        limit = config.clip_factor * statistics.median(self.norms) if len(self.norms) >= MEDIAN_FROM else math.inf
        if norm > limit:
            for gradient in self._gradients():
                gradient.mul_(limit / norm)
        for group in self.inner.param_groups:
            group.update(lr=config.learning_rate, betas=(config.beta1, config.beta2), eps=config.epsilon)
        self.inner.step()
        self.drop()
        self.norms = [*self.norms, norm][-MEDIAN_OF:]
        return norm > limit

    def drop(self) -> None:
        """Forget the accumulated gradient."""
        for parameter in self.parameters:
            parameter.grad = None

    def save(self, path: Path) -> None:
        """Write the moments; `norms` belong to whoever writes the state."""
        moments = {
            f"{index}.{key}": value.detach().clone()
            for index, state in self.inner.state_dict()["state"].items()
            for key, value in state.items()
        }
        save_file(moments, path)

    def load(self, path: Path, norms: list[float]) -> None:
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in load_file(path).items():
            index, _, name = key.partition(".")
            state.setdefault(int(index), {})[name] = value
        self.inner.load_state_dict({**self.inner.state_dict(), "state": state})
        self.norms = norms

    def _gradients(self) -> list[Tensor]:
        return [p.grad for p in self.parameters if p.grad is not None]
