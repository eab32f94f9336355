"""Load a base model from a local folder or a hub id, and name it by digest."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from nightschool.errors import MissingError
from nightschool.models import attention
from nightschool.rendering.renderer import Renderer


@dataclass(frozen=True, slots=True)
class BaseModel:
    """A loaded base: the network in evaluation mode, its renderer, and what identifies it."""

    name: str
    folder: Path
    network: PreTrainedModel
    renderer: Renderer
    digest: str
    device: torch.device
    dtype: torch.dtype


def load_base(folder: Path, dtype: torch.dtype | None = None, device: str | None = None) -> BaseModel:
    """Load weights with the project's attention.

    Edge: without `dtype` the device decides by a one-second probe (`fast_dtype`).

    Raises:
        MissingError: the folder holds no model.
    """
    if not (folder / "config.json").exists():
        raise MissingError(
            f"There is no model in {folder}.", "config.json is absent.", "nightschool models fetch smollm2-135m"
        )
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    chosen = dtype or fast_dtype(place)
    attention.register()
    with quiet():
        network = AutoModelForCausalLM.from_pretrained(
            folder, dtype=chosen, attn_implementation=attention.NAME, local_files_only=True, trust_remote_code=False
        )
    nn.Module.to(network.eval().requires_grad_(False), place)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return BaseModel(model_name(folder), folder, network, Renderer(tokenizer), base_digest(folder), place, chosen)


def model_name(folder: Path) -> str:
    """What a model is called: its folder's name, or the hub id of a snapshot in the hub's cache."""
    folder = folder.resolve()
    if folder.parent.name == "snapshots":
        return folder.parents[1].name.removeprefix("models--").replace("--", "/")
    return folder.name


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the progress bars of transformers."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def base_digest(folder: Path) -> str:
    """SHA-256 over config, weights and tokenizer files, by name and content.

    Edge: the digest is kept beside the weights in `digest.sha256` and recomputed when a size or a
    modification time no longer matches.
    """
    files = sorted(
        path for path in folder.iterdir() if path.suffix in (".json", ".safetensors", ".jinja") and path.is_file()
    )
    stamp = "\n".join(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files)
    cache = folder / "digest.sha256"
    if cache.exists():
        digest, _, known = cache.read_text().partition("\n")
        if known == stamp:
            return digest
    total = hashlib.sha256()
    for path in files:
        total.update(path.name.encode() + b"\0")
        with path.open("rb") as handle:
            total.update(hashlib.file_digest(handle, "sha256").digest())
    with contextlib.suppress(OSError):  # a read-only model folder is fine: computed again next time
        cache.write_text(f"{total.hexdigest()}\n{stamp}")
    return total.hexdigest()


def fast_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where a small matrix product is faster in it than in float32, else float32."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    return torch.bfloat16 if _product_s(torch.bfloat16) < _product_s(torch.float32) else torch.float32


def _product_s(dtype: torch.dtype) -> float:
    a = torch.ones(256, 1024, dtype=dtype)
    b = torch.ones(1024, 1024, dtype=dtype)
    torch.matmul(a, b)
    started = time.perf_counter()
    for _ in range(10):
        torch.matmul(a, b)
    return time.perf_counter() - started
