"""A critic: a second adapter on the policy's base, and a linear head that says what a state is worth.

The head starts at zero, so an untrained critic says 0 of everything, never noise.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from nightschool.models.lora import LoraConfig, LoraModel, write_adapter
from nightschool.training.adam import Adam
from nightschool.training.backend import AdamConfig

CRITIC = "critic"
HEAD, MOMENTS = "head.safetensors", "optimizer.safetensors"


class Critic:
    """The adapter `CRITIC` of `lora`, its head in float32, and their optimizer."""

    def __init__(self, lora: LoraModel, config: LoraConfig, head: nn.Linear) -> None:
        self.lora = lora
        self.config = config
        self.head = head
        self.adam = Adam([*lora.parameters(CRITIC), *head.parameters()])

    @classmethod
    def fresh(cls, lora: LoraModel, config: LoraConfig, output: nn.Linear, seed: int) -> Critic:
        """`output` is the base's own output layer: the head reads what it reads, where it lies."""
        lora.create(CRITIC, config, seed=seed)
        return cls(lora, config, _zero_head(output))

    @classmethod
    def load(cls, lora: LoraModel, folder: Path, output: nn.Linear) -> Critic:
        """Read what `save` wrote."""
        config = lora.load(CRITIC, folder)
        head = _zero_head(output)
        head.load_state_dict(load_file(folder / HEAD))
        return cls(lora, config, head)

    def save(self, folder: Path, base_name: str) -> None:
        """Write adapter and head, without the optimizer."""
        write_adapter(folder, self.config, self.lora.tensors(CRITIC), base_name)
        save_file({key: value.detach().clone() for key, value in self.head.state_dict().items()}, folder / HEAD)

    def values(self, hidden: Tensor) -> Tensor:
        """Shapes: hidden states before each token (N, D), computed with the critic's adapter -> (N,) float32."""
        return self.head(hidden.float())[:, 0]

    def step(self, config: AdamConfig, norm: float) -> None:
        self.adam.step(replace(config, learning_rate=config.learning_rate * config.critic_factor), norm)

    def close(self) -> None:
        self.lora.unload(CRITIC)


def _zero_head(output: nn.Linear) -> nn.Linear:
    head = nn.Linear(output.in_features, 1, dtype=torch.float32, device=output.weight.device)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head
