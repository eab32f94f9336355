"""Plain calls against the modules they stand for, family by family."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from nightschool.engine.runner import Row, Runner
from nightschool.engine.sampling import Sampling
from nightschool.models import attention
from nightschool.models.base import load_base

SIZES = {
    "vocab_size": 90,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
ROPE = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALED = {"rope_parameters": {**ROPE, "original_max_position_embeddings": 16}}


def runner_of(tiny, config: PreTrainedConfig, seed: int = 0) -> Runner:
    """A runner of a random network; weights far from the small ones a network begins with."""
    torch.manual_seed(seed)
    attention.register()
    network = AutoModelForCausalLM.from_config(config, attn_implementation=attention.NAME).eval()
    for parameter in network.parameters():
        parameter.data.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.3)
    base = replace(load_base(tiny, torch.float32, "cpu"), network=network.requires_grad_(False))
    return Runner(base, 4, 64)


@torch.inference_mode()
def logits_of(runner: Runner, prompts: list[list[int]]) -> torch.Tensor:
    rows = [Row("", ids, torch.tensor(ids[:-1]).numpy(), Sampling(), slot) for slot, ids in enumerate(prompts)]
    runner.fill(rows)
    return runner.decode(rows)


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**SIZES),
        LlamaConfig(**SIZES, **SCALED),
        MistralConfig(**SIZES),
        Qwen2Config(**SIZES),  # biases
        Qwen3Config(**SIZES),  # norms of single heads
    ],
    ids=["llama", "llama-scaled", "mistral", "qwen2", "qwen3"],
)
def test_layers_compute_what_the_modules_compute(tiny, config):
    runner = runner_of(tiny, config)
    prompts = [list(range(5, 35)), [7, 9, 50], [3, *range(60, 80)]]
    assert runner._layers is not None
    found = logits_of(runner, prompts)
    runner._layers = None
    expected = logits_of(runner, prompts)
    assert expected.std() > 0.1
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.parametrize(
    "config",
    [
        Gemma2Config(**SIZES),  # other parts
        GraniteConfig(**SIZES, residual_multiplier=0.3),  # the same parts, put together differently
    ],
    ids=["gemma2", "granite"],
)
def test_other_networks_keep_their_modules(tiny, config):
    runner = runner_of(tiny, config)
    assert runner._layers is None
    prompts = [list(range(5, 35)), [7, 9, 50]]
    alone = torch.cat([logits_of(runner_of(tiny, config), [ids]) for ids in prompts])
    assert torch.allclose(logits_of(runner, prompts), alone, atol=1e-3)
