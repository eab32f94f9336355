"""Bytes that a training step holds at its peak."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from nightschool.models.shapes import Shape
from nightschool.planning.operations import factors, num_adapter_weights
from nightschool.training.limits import CHUNK_ROWS, KEEP_BYTES, ROWS, TILE

FLOAT32 = 4
PER_ADAPTER_WEIGHT = 4 * FLOAT32  # the weight, its gradient, Adam's two moments
ITEM_BYTES = {"bfloat16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest pack of a run: its tokens, and how many places it scores. `num_models` adapters train at once: two
    with a critic."""

    num_tokens: int = 0
    num_scored: int = 0
    num_models: int = 1


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes by what they are for. `packed`: copies of the weights in the layout that a processor's products read.
    `process`: the interpreter and its libraries, or a card's context. `cache`: keys and values of sequences that are
    being drawn, with the engine's own weights."""

    weights: float
    packed: float
    adapter: float
    activations: float
    head: float
    process: float
    cache: float = 0.0

    @property
    def total(self) -> float:
        return sum(asdict(self).values())


def kept_per_token(shape: Shape, item: int) -> float:
    """Bytes that one block keeps of each token for the gradient: the inputs of its two halves, queries, keys, values,
    what attention gave, gate and up; queries and keys once more where their heads are normed."""
    q, kv = shape.query_width, shape.kv_width
    return item * (2 * shape.hidden + 2 * q + 2 * kv + 2 * shape.ffn + shape.norms_heads * (q + kv))


def whole_layers(shape: Shape, item: int, num_tokens: float) -> int:
    """Blocks that keep all of this in a pass of so many tokens. The others keep their input."""
    return min(shape.num_layers, math.ceil(KEEP_BYTES / (num_tokens * kept_per_token(shape, item))))


def activation_bytes(shape: Shape, item: int, num_tokens: float, checkpointed: bool = False) -> float:
    """What a pass keeps for its gradient; `checkpointed`, if every block but the first kept its input alone.

    Where blocks are computed once more, one of them is whole beside.
    """
    whole = 1 if checkpointed else whole_layers(shape, item, num_tokens)
    rest = shape.num_layers - whole
    kept = kept_per_token(shape, item)
    return num_tokens * (kept * (whole + (rest > 0)) + rest * item * shape.hidden)


def working_bytes(shape: Shape, item: int, num_tokens: float, on_cpu: bool) -> float:
    """What one block's gradient holds while it is computed: gradients of its inputs, of queries, keys and values, these
    two in float32, and of gate and up for the rows that are taken at a time."""
    h, q, kv = shape.hidden, shape.query_width, shape.kv_width
    rows = min(num_tokens, ROWS) if on_cpu else num_tokens
    return num_tokens * (item * (3 * h + 2 * q + 2 * kv) + 2 * FLOAT32 * kv) + rows * item * 6 * shape.ffn


def head_bytes(shape: Shape, item: int, num_scored: int) -> float:
    """One tile's logits and probabilities, in the model's format and in float32, and the slopes of all places."""
    rows, columns = min(num_scored, CHUNK_ROWS), min(shape.vocab, TILE)
    return rows * columns * 2 * (item + FLOAT32) + num_scored * shape.hidden * item * 2


def cache_bytes(shape: Shape, item: int, num_tokens: float) -> float:
    """Keys and values of `num_tokens` tokens in every block."""
    return 2 * shape.num_layers * shape.kv_width * item * num_tokens


def weight_bytes(shape: Shape, item: int) -> float:
    return shape.num_parameters * item


def packed_bytes(shape: Shape, item: int) -> float:
    """Every product's weights twice more: as they are multiplied forward, and back."""
    return 2 * item * (shape.num_layers * shape.num_layer_weights + shape.hidden * shape.vocab)


def adapter_bytes(shape: Shape, rank: int, item: int, num_models: int) -> float:
    """Weights, gradients and moments in float32, and one pass's factors with their gradients."""
    whole = num_models * PER_ADAPTER_WEIGHT * num_adapter_weights(shape, rank)
    return whole + num_models * shape.num_layers * sum(factors(shape, rank)) * (item + FLOAT32)
