"""Adapters: PEFT's library reads ours and we read PEFT's; several at once; what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig as PeftConfig
from peft import PeftModel, get_peft_model
from tiny import make_tiny_model
from transformers import AutoModelForCausalLM

from nightschool.errors import AdapterError
from nightschool.models.base import load_base
from nightschool.models.lora import ALL_LINEAR, LoraConfig, LoraModel, read_adapter, write_adapter

IDS = torch.tensor([[5, 9, 200, 41, 17, 3]])

# peft asks transformers for a name that is deprecated
peft_warns = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def lora(tiny: Path) -> LoraModel:
    return LoraModel(load_base(tiny, torch.float32, "cpu").network)


def plain(tiny: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32).eval()


def make(lora: LoraModel, name: str, seed: int, config: LoraConfig) -> None:
    lora.create(name, config, seed)
    generator = torch.Generator().manual_seed(seed)
    for parameter in lora.parameters(name):
        parameter.data.normal_(0, 0.1, generator=generator)


@torch.inference_mode()
def logits(lora: LoraModel, ids: torch.Tensor, *spans: tuple[str, int, int]) -> torch.Tensor:
    lora.routing.spans = list(spans)
    length = ids.shape[1]
    mask = torch.zeros(1, 1, length, length).masked_fill_(torch.ones(length, length).triu(1).bool(), -1e9)
    return lora.model(ids, attention_mask=mask).logits


@peft_warns
@pytest.mark.parametrize("targets", [ALL_LINEAR, ("q_proj", "down_proj")])
def test_peft_reads_our_folder(tiny, lora, tmp_path, targets):
    config = LoraConfig(rank=3, alpha=12, targets=targets)
    make(lora, "a", 1, config)
    write_adapter(tmp_path, config, lora.tensors("a"), "tiny")
    theirs = PeftModel.from_pretrained(plain(tiny), str(tmp_path)).eval()
    with torch.no_grad():
        expected = theirs(IDS).logits
    ours = logits(lora, IDS, ("a", 0, 1))
    assert (ours - expected).abs().max() < 1e-5
    assert (ours - logits(lora, IDS)).abs().max() > 0.01


@peft_warns
def test_we_read_pefts_folder(tiny, lora, tmp_path):
    config = PeftConfig(r=4, lora_alpha=8, target_modules=list(ALL_LINEAR), init_lora_weights=False)
    theirs = get_peft_model(plain(tiny), config).eval()
    theirs.save_pretrained(str(tmp_path))
    found = lora.load("a", tmp_path)
    assert (found.rank, found.alpha) == (4, 8)
    with torch.no_grad():
        expected = theirs(IDS).logits
    assert (logits(lora, IDS, ("a", 0, 1)) - expected).abs().max() < 1e-5


def test_rows_of_one_batch_go_through_their_own_adapters(lora):
    make(lora, "a", 1, LoraConfig(rank=2, alpha=4))
    make(lora, "b", 2, LoraConfig(rank=5, alpha=4))
    mixed = logits(lora, IDS.repeat(4, 1), ("a", 0, 1), ("b", 2, 4))
    alone = {"a": logits(lora, IDS, ("a", 0, 1)), "b": logits(lora, IDS, ("b", 0, 1)), "": logits(lora, IDS)}
    for row, name in enumerate(("a", "", "b", "b")):
        assert (mixed[row] - alone[name][0]).abs().max() < 1e-5


def test_with_gradients_rows_are_routed_alike(lora):
    """The way taken with gradients is not the one taken in inference mode."""
    make(lora, "a", 1, LoraConfig(rank=2, alpha=4))
    expected = logits(lora, IDS.repeat(2, 1), ("a", 1, 2))
    mask = torch.zeros(1, 1, 6, 6).masked_fill_(torch.ones(6, 6).triu(1).bool(), -1e9)
    found = lora.model(IDS.repeat(2, 1), attention_mask=mask).logits
    assert (found - expected).abs().max() < 1e-5
    found[0].sum().backward(retain_graph=True)
    assert all(p.grad is None or not p.grad.any() for p in lora.parameters("a"))  # row 0 is the base's
    found[1].sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in lora.parameters("a"))


def test_a_fresh_adapter_changes_nothing(lora):
    lora.create("a", LoraConfig(rank=4))
    assert torch.equal(logits(lora, IDS, ("a", 0, 1)), logits(lora, IDS))


def test_tensors_survive_assign_and_unload_removes(lora):
    make(lora, "a", 1, LoraConfig(rank=2))
    kept = lora.tensors("a")
    before = logits(lora, IDS, ("a", 0, 1))
    for parameter in lora.parameters("a"):
        parameter.data.zero_()
    assert torch.equal(logits(lora, IDS, ("a", 0, 1)), logits(lora, IDS))
    lora.assign("a", kept)
    assert torch.equal(logits(lora, IDS, ("a", 0, 1)), before)
    lora.unload("a")
    assert lora.loaded == {}
    assert torch.equal(logits(lora, IDS, ("a", 0, 1)), logits(lora, IDS))  # an unknown name is the base


def test_an_adapter_of_another_shape_is_refused_and_leaves_nothing(lora, tmp_path):
    make(lora, "a", 1, LoraConfig(rank=2))
    config, tensors = LoraConfig(rank=2), lora.tensors("a")
    bad = {**tensors, "model.layers.1.mlp.down_proj.lora_B.weight": torch.zeros(65, 2)}
    write_adapter(tmp_path / "wide", config, bad, "tiny")
    write_adapter(
        tmp_path / "deep", config, {**tensors, "model.layers.9.mlp.up_proj.lora_A.weight": torch.zeros(1)}, ""
    )
    for folder, words in (("wide", "down_proj"), ("deep", r"layers\.9")):
        with pytest.raises(AdapterError, match=words):
            lora.load("b", tmp_path / folder)
    assert list(lora.loaded) == ["a"]
    assert all("b" not in layer.scale for layer in lora.layers.values())


@pytest.mark.parametrize("change", [{"use_dora": True}, {"peft_type": "IA3"}, {"bias": "all"}, {"use_rslora": True}])
def test_other_kinds_of_adapters_are_refused(lora, tmp_path, change):
    make(lora, "a", 1, LoraConfig(rank=2))
    write_adapter(tmp_path, LoraConfig(rank=2), lora.tensors("a"), "tiny")
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(AdapterError, match="not plain LoRA"):
        read_adapter(tmp_path)


def test_a_missing_file_says_so(tmp_path):
    with pytest.raises(AdapterError, match="cannot be read"):
        read_adapter(tmp_path)
