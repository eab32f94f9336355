"""What a model is made of: the sizes that memory and time follow from. Nothing here reads weights or imports torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nightschool.errors import InputError, MissingError

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")  # one block: grouped attention, gated MLP, RMS norms


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder's sizes. `tied`: the output layer is the embedding. `biased`: queries, keys and values have a bias.
    `norms_heads`: queries and keys are normed per head."""

    name: str
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_width: int
    ffn: int
    vocab: int
    tied: bool = True
    biased: bool = False
    norms_heads: bool = False

    @property
    def query_width(self) -> int:
        return self.num_heads * self.head_width

    @property
    def kv_width(self) -> int:
        return self.num_kv_heads * self.head_width

    def linear(self) -> dict[str, tuple[int, int]]:
        """(in, out) of the linear layers of one block, by name."""
        h, q, kv, f = self.hidden, self.query_width, self.kv_width, self.ffn
        return dict(zip(LINEAR, ((h, q), (h, kv), (h, kv), (q, h), (h, f), (h, f), (f, h)), strict=True))

    @property
    def num_layer_weights(self) -> int:
        """Weights of one block's matrix products."""
        return sum(wide * high for wide, high in self.linear().values())

    @property
    def num_parameters(self) -> int:
        small = 2 * self.hidden + self.biased * (self.query_width + 2 * self.kv_width)
        small += self.norms_heads * 2 * self.head_width
        embeddings = self.vocab * self.hidden * (1 if self.tied else 2)
        return self.num_layers * (self.num_layer_weights + small) + embeddings + self.hidden


def _qwen2(name: str, sizes: tuple[int, int, int, int, int, int], head_width: int, tied: bool) -> Shape:
    layers, hidden, heads, kv_heads, ffn, vocab = sizes
    return Shape(name, layers, hidden, heads, kv_heads, head_width, ffn, vocab, tied, biased=True)


KNOWN = (
    Shape("smollm2-135m", 30, 576, 9, 3, 64, 1536, 49152),
    Shape("smollm2-360m", 32, 960, 15, 5, 64, 2560, 49152),
    Shape("smollm2-1.7b", 24, 2048, 32, 32, 64, 8192, 49152),
    _qwen2("qwen2.5-0.5b", (24, 896, 14, 2, 4864, 151936), 64, tied=True),
    _qwen2("qwen2.5-1.5b", (28, 1536, 12, 2, 8960, 151936), 128, tied=True),
    _qwen2("qwen2.5-3b", (36, 2048, 16, 2, 11008, 151936), 128, tied=True),
    _qwen2("qwen2.5-7b", (28, 3584, 28, 4, 18944, 152064), 128, tied=False),
    _qwen2("qwen2.5-14b", (48, 5120, 40, 8, 13824, 152064), 128, tied=False),
    _qwen2("qwen2.5-32b", (64, 5120, 40, 8, 27648, 152064), 128, tied=False),
    Shape("qwen3-0.6b", 28, 1024, 16, 8, 128, 3072, 151936, norms_heads=True),
    Shape("qwen3-1.7b", 28, 2048, 16, 8, 128, 6144, 151936, norms_heads=True),
    Shape("qwen3-4b", 36, 2560, 32, 8, 128, 9728, 151936, norms_heads=True),
    Shape("qwen3-8b", 36, 4096, 32, 8, 128, 12288, 151936, tied=False, norms_heads=True),
    Shape("qwen3-14b", 40, 5120, 40, 8, 128, 17408, 151936, tied=False, norms_heads=True),
    Shape("qwen3-32b", 64, 5120, 64, 8, 128, 25600, 151936, tied=False, norms_heads=True),
    Shape("llama-3.2-1b", 16, 2048, 32, 8, 64, 8192, 128256),
    Shape("llama-3.2-3b", 28, 3072, 24, 8, 128, 8192, 128256),
    Shape("llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256, tied=False),
    Shape("mistral-7b-v0.3", 32, 4096, 32, 8, 128, 14336, 32768, tied=False),
)
SIZES = {
    "135m": "smollm2-135m",
    "0.5b": "qwen2.5-0.5b",
    "1.5b": "qwen2.5-1.5b",
    "3b": "qwen2.5-3b",
    "7b": "qwen2.5-7b",
    "8b": "llama-3.1-8b",
    "14b": "qwen2.5-14b",
    "32b": "qwen2.5-32b",
}
SUFFIXES = ("-instruct", "-base", "-chat")


def find_shape(name: str) -> Shape:
    """The shape of a local folder, of a name of the table, of a size (`7b`), or of a hub id whose last part is in the
    table. Nothing is downloaded.

    Raises:
        InputError: it is none of these, or a family whose blocks are built differently.
    """
    folder = Path(name).expanduser()
    if (folder / "config.json").exists():
        return read_shape(folder)
    short = name.rpartition("/")[2].lower()
    for suffix in SUFFIXES:
        short = short.removesuffix(suffix)
    short = SIZES.get(short, short)
    for shape in KNOWN:
        if shape.name == short:
            return shape
    raise InputError(
        f"The shape of {name!r} is not known.",
        f"It is no folder with a config.json, and none of {', '.join(shape.name for shape in KNOWN)}.",
        f"Give a folder, one of these, or a size: {', '.join(SIZES)}",
    )


def read_shape(folder: Path) -> Shape:
    """The shape that a folder's `config.json` tells.

    Raises:
        MissingError: there is no such file.
        InputError: it tells of another kind of model.
    """
    try:
        config: Any = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise MissingError(f"There is no model in {folder}.", "config.json cannot be read.", "") from error
    family = config.get("model_type") if isinstance(config, Mapping) else None
    if family not in FAMILIES:
        raise InputError(
            f"What a model of type {family!r} takes is not known.",
            f"Known are {', '.join(FAMILIES)}.",
            "Name a model of that size: nightschool plan --model 7b",
        )
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    return Shape(
        folder.resolve().name,
        config["num_hidden_layers"],
        hidden,
        heads,
        config.get("num_key_value_heads") or heads,
        config.get("head_dim") or hidden // heads,
        config["intermediate_size"],
        config["vocab_size"],
        bool(config.get("tie_word_embeddings", False)),
        biased=family == "qwen2" or bool(config.get("attention_bias")),
        norms_heads=family == "qwen3",
    )
