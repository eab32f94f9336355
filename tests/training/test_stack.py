"""The layers written out against the model library's own, with its recorded graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from nightschool.models.base import BaseModel, load_base
from nightschool.models.lora import LoraConfig, LoraModel
from nightschool.training import attention
from nightschool.training.bodies import Body, Layers
from nightschool.training.packing import Pack, pack
from nightschool.training.stack import Stack
from tests.tiny import make_tiny_model, write_tiny_tokenizer

ADAPTER = "policy"
SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 2,
    "initializer_range": 0.3,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {"head_dim": 8, "attention_bias": True},
    "Qwen2": {},  # a bias on query, key and value
    "Qwen3": {"head_dim": 16},  # normalized heads, wider together than the hidden state
    "Mistral": {"sliding_window": None, "head_dim": 8},
}


def made(folder: Path, family: str, **settings: object) -> BaseModel:
    folder.mkdir(parents=True)
    vocabulary = write_tiny_tokenizer(folder)
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(vocab_size=vocabulary, **{**SHAPE, **settings})
    getattr(transformers, f"{family}ForCausalLM")(config).save_pretrained(folder)
    return load_base(folder, torch.float32, "cpu")


def adapted(base: BaseModel, config: LoraConfig) -> LoraModel:
    """With an adapter that does something."""
    attention.register()
    lora = LoraModel(base.network, config.targets)
    lora.create(ADAPTER, config)
    torch.manual_seed(1)
    for parameter in lora.parameters(ADAPTER):
        torch.nn.init.normal_(parameter, std=0.2)
    return lora


def forest() -> Pack:
    """More nodes than a block of attention has, on several branches."""
    torch.manual_seed(2)
    trunk = torch.randint(3, 200, (90,)).tolist()
    branches = [[*trunk[:at], *torch.randint(3, 200, (long,)).tolist()] for at, long in ((90, 40), (90, 7), (30, 60))]
    (one,) = pack([*branches, [5, 4, 3]])
    assert one.num_tokens == 90 + 40 + 7 + 60 + 3
    return one


def gradients(lora: LoraModel, hidden: Tensor) -> list[Tensor]:
    torch.manual_seed(3)
    return list(torch.autograd.grad((hidden * torch.randn(hidden.shape)).sum(), lora.parameters(ADAPTER)))


@pytest.mark.parametrize("family", FAMILIES)
def test_values_and_gradients_are_the_library_s(family: str, tmp_path: Path) -> None:
    base = made(tmp_path / "model", family, **FAMILIES[family])
    lora, one = adapted(base, LoraConfig(rank=4, alpha=8)), forest()
    stack = Stack.of(base.network)
    assert stack is not None
    theirs, ours = Layers(base, lora, tree=True).hidden(one, ADAPTER), stack.hidden(one, ADAPTER)
    assert (theirs - ours).abs().max() < 1e-4
    for a, b in zip(gradients(lora, theirs), gradients(lora, ours), strict=True):
        assert a.norm() > 0
        assert (a - b).norm() < 1e-4 * a.norm()


def test_an_adapter_on_some_layers_only(tmp_path: Path) -> None:
    base = made(tmp_path / "model", "Llama")
    lora, one = adapted(base, LoraConfig(rank=4, alpha=8, targets=("v_proj", "up_proj"))), forest()
    stack = Stack.of(base.network)
    assert stack is not None
    theirs, ours = Layers(base, lora, tree=True).hidden(one, ADAPTER), stack.hidden(one, ADAPTER)
    assert (theirs - ours).abs().max() < 1e-4
    for a, b in zip(gradients(lora, theirs), gradients(lora, ours), strict=True):
        assert (a - b).norm() < 1e-4 * a.norm()
    assert (stack.hidden(one, None) - ours).abs().max() > 1e-2, "without the adapter it is another model"


@pytest.mark.parametrize("keep_bytes", [0, 300_000], ids=["nothing kept", "one layer kept"])
def test_what_is_computed_twice_has_the_same_gradient(keep_bytes: int, tmp_path: Path) -> None:
    base = made(tmp_path / "model", "Qwen3", **FAMILIES["Qwen3"])
    lora, one = adapted(base, LoraConfig(rank=4, alpha=8)), forest()
    all_kept, few = Stack.of(base.network), Stack.of(base.network, keep_bytes)
    assert all_kept is not None
    assert few is not None
    # of 200 nodes a layer keeps 2 * 32 + 96 raw + 128 query, key, value + 64 read + 96 gated floats: 358,400 bytes
    for a, b in zip(
        gradients(lora, all_kept.hidden(one, ADAPTER)), gradients(lora, few.hidden(one, ADAPTER)), strict=True
    ):
        assert torch.equal(a, b)


def test_rows_are_taken_a_few_at_a_time_without_changing_anything(tmp_path: Path, monkeypatch) -> None:
    base = made(tmp_path / "model", "Llama")
    lora, one = adapted(base, LoraConfig(rank=4, alpha=8)), forest()
    stack = Stack.of(base.network)
    assert stack is not None
    whole = gradients(lora, stack.hidden(one, ADAPTER))
    monkeypatch.setattr("nightschool.training.stack.ROWS", 7)
    for a, b in zip(whole, gradients(lora, stack.hidden(one, ADAPTER)), strict=True):
        assert (a - b).norm() < 1e-5 * a.norm()


def body_of(base: BaseModel) -> Body:
    attention.register()
    return Body.of(base, LoraModel(base.network), 1 << 30)


def test_a_network_that_agrees_goes_through_the_stack(tmp_path: Path) -> None:
    body = body_of(made(tmp_path / "model", "Llama"))
    assert isinstance(body.tree, Stack)
    assert body.window is None


def test_one_that_only_looks_alike_does_not(tmp_path: Path) -> None:
    # Gemma's norm multiplies by 1 + weight, and it scales its embeddings: the names are the same, the numbers are not
    body = body_of(made(tmp_path / "model", "Gemma", hidden_act="silu", head_dim=8))
    assert isinstance(body.tree, Layers)


def test_recurrent_layers_get_their_sequences_one_by_one(tmp_path: Path) -> None:
    body = body_of(made(tmp_path / "model", "Mamba", state_size=4))
    assert body.tree is None
    packs = body.packs([[3, 4, 5], [3, 4, 6, 7]], 100)
    assert [one.num_tokens for one in packs] == [3, 4]
    assert sorted(one.rows for one in packs) == [(0,), (1,)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nor_do_layers_of_both_kinds_share_a_forward_in_any_precision(dtype: torch.dtype, tmp_path: Path) -> None:
    """A random one leaks so little that in bfloat16 its numbers alone would pass."""
    made(tmp_path / "model", "RecurrentGemma", lru_width=32, attention_window_size=64)
    assert body_of(load_base(tmp_path / "model", dtype, "cpu")).tree is None


def test_a_window_matters_only_to_sequences_longer_than_it(tmp_path: Path) -> None:
    base = made(tmp_path / "model", "Mistral", sliding_window=20, head_dim=8)
    body = body_of(base)
    assert isinstance(body.tree, Stack)
    long, short = [3, *range(20, 49)], [3, 4, 5]
    packs = body.packs([long, short, [3, 4, 6]], 100)
    assert sorted((one.rows, one.num_tokens) for one in packs) == [((0,), 30), ((1, 2), 4)]
    network: Any = base.network
    network.set_attn_implementation("sdpa")
    truth = network.base_model(torch.tensor([long])).last_hidden_state[0]
    (one,) = (one for one in packs if one.rows == (0,))
    assert (body.hidden(one, None) - truth).abs().max() < 1e-5
    assert (body.tree.hidden(one, None) - truth).abs().max() > 1e-3, "the window is worth the trouble"


def test_bfloat16_is_as_near_to_the_truth_as_the_library(tmp_path: Path) -> None:
    ours = theirs = 0.0  # over models: of one alone either comes out nearer, by up to a quarter
    for seed in range(6):
        folder = make_tiny_model(tmp_path / str(seed), seed)
        exact, coarse = (load_base(folder, dtype, "cpu") for dtype in (torch.float32, torch.bfloat16))
        one, config = forest(), LoraConfig(rank=4, alpha=8)
        truth = Layers(exact, adapted(exact, config), tree=True).hidden(one, ADAPTER).detach()
        lora, stack = adapted(coarse, config), Stack.of(coarse.network)
        assert stack is not None
        ours += (stack.hidden(one, ADAPTER) - truth).norm().item()
        theirs += (Layers(coarse, lora, tree=True).hidden(one, ADAPTER) - truth).norm().item()
    assert ours < 1.15 * theirs
