"""Loading a base model and naming it by digest; the project's attention against transformers' own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from tiny import make_tiny_model
from transformers import AutoModelForCausalLM

from nightschool.errors import MissingError
from nightschool.models.attention import additive
from nightschool.models.base import base_digest, load_base, model_name


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


def test_the_digest_covers_content_and_not_the_place(tmp_path):
    one, two, other = (make_tiny_model(tmp_path / name, seed) for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    assert base_digest(one) == base_digest(two) != base_digest(other)


def test_the_digest_is_computed_once_and_again_when_a_file_changes(tmp_path, monkeypatch):
    folder = make_tiny_model(tmp_path)
    first = base_digest(folder)
    with monkeypatch.context() as patch:
        patch.setattr("hashlib.file_digest", None)  # hashing a file now would raise
        assert base_digest(folder) == first
    config = folder / "config.json"
    config.write_text(config.read_text() + "\n")
    assert base_digest(folder) != first


def test_a_touched_file_is_hashed_again_and_keeps_its_digest(tmp_path):
    folder = make_tiny_model(tmp_path)
    first = base_digest(folder)
    os.utime(folder / "config.json", ns=(1, 1))
    assert base_digest(folder) == first


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_folder_has_a_digest(tmp_path):
    folder = make_tiny_model(tmp_path)
    folder.chmod(0o500)
    try:
        assert len(base_digest(folder)) == 64
        assert not (folder / "digest.sha256").exists()
    finally:
        folder.chmod(0o700)


def test_a_folder_without_a_model_says_what_to_do(tmp_path):
    with pytest.raises(MissingError, match="nightschool models fetch"):
        load_base(tmp_path)


@torch.no_grad()
def test_grouped_attention_is_transformers_attention(tiny):
    base = load_base(tiny, torch.float32, "cpu")
    ids = torch.randint(3, 277, (2, 20), generator=torch.Generator().manual_seed(0))
    look = torch.ones(20, 20).tril().bool()[None, None].repeat(2, 1, 1, 1)
    look[1, 0, 10:, 3:6] = False  # an arbitrary mask, as a prefix tree has
    expected = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32).eval()(ids, attention_mask=look).logits
    found = base.network(ids, attention_mask=additive(look, torch.float32)).logits
    assert (found - expected).abs().max() < 1e-4


def test_a_hub_snapshot_is_called_by_its_id(tmp_path):
    snapshot = tmp_path / "models--owner--small-model" / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    assert model_name(snapshot) == "owner/small-model"
    assert model_name(tmp_path) == tmp_path.name


def test_the_weights_are_frozen(tiny):
    assert not any(p.requires_grad for p in load_base(tiny, torch.float32, "cpu").network.parameters())
