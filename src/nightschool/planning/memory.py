"""Bytes that a training step holds at its peak."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from nightschool.models.shapes import Shape
from nightschool.planning.operations import num_adapter_weights

BLOCK = 64  # queries of one attention block
BIGGEST_CALL = 16_000_000  # scores of one call of attention whose weights are kept
CLASS = 1.35  # blocks whose keys differ by less share a call
CHUNK_ROWS = 256  # rows of the output layer at a time
FLOAT32 = 4
PER_ADAPTER_WEIGHT = 4 * FLOAT32  # the weight, its gradient, Adam's two moments
ITEM_BYTES = {"bfloat16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest pack of a run: its tokens, the sum of the keys that its blocks look at, and how many places it
    scores. `num_models` adapters train at once: two with a critic."""

    num_tokens: int = 0
    block_keys: int = 0
    num_scored: int = 0
    num_models: int = 1

    @property
    def keys(self) -> float:
        """Keys per block, on average."""
        return self.block_keys / math.ceil(self.num_tokens / BLOCK) if self.num_tokens else 0.0


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes by what they are for. `process`: the interpreter and its libraries, or a card's context. `cache`: keys and
    values of sequences that are being drawn, with the engine's own copy of the weights."""

    weights: float
    adapter: float
    activations: float
    head: float
    process: float
    cache: float = 0.0

    @property
    def total(self) -> float:
        return sum(asdict(self).values())


def kept_per_token(shape: Shape, rank: int, item: int, keys: float, num_tokens: float) -> float:
    """Bytes that the blocks keep of each token for the gradient, in a pack of `num_tokens` whose attention blocks look
    at `keys` keys each.

    Per block of the model: what the adapters read (the two norms' outputs, attention's output, the gated product), the
    two norms' inputs in float32, queries, gathered keys and values, attention weights unless the call is too big, gate,
    up, and the gate's activation.
    """
    h, q, kv = shape.hidden, shape.query_width, shape.kv_width
    read = 2 * h + q + rank * len(shape.linear())
    gathered = 2 * kv * keys / BLOCK
    weights = shape.num_heads * keys
    if num_tokens * weights > BIGGEST_CALL * _num_calls(keys):
        weights = q / shape.head_width  # one number a head and query
    ffn = 4 * shape.ffn
    norms_per_head = FLOAT32 * (q + kv) * shape.norms_heads
    return shape.num_layers * (item * (read + q + gathered + weights + ffn) + 2 * FLOAT32 * h + norms_per_head)


def kept_checkpointed(shape: Shape, rank: int, item: int, keys: float, num_tokens: float) -> float:
    """As `kept_per_token` where only the blocks' inputs are kept, and one block at a time is computed again."""
    whole = kept_per_token(shape, rank, item, keys, num_tokens)
    return shape.num_layers * shape.hidden * item + whole / shape.num_layers


def head_bytes(shape: Shape, item: int, num_scored: int) -> float:
    """One chunk's logits and probabilities, in the model's format and in float32, and the slopes of all places."""
    rows = min(num_scored, CHUNK_ROWS)
    return rows * shape.vocab * 2 * (item + FLOAT32) + num_scored * shape.hidden * item * 2


def cache_bytes(shape: Shape, item: int, num_tokens: float) -> float:
    """Keys and values of `num_tokens` tokens in every block."""
    return 2 * shape.num_layers * shape.kv_width * item * num_tokens


def weight_bytes(shape: Shape, item: int) -> float:
    return shape.num_parameters * item


def adapter_bytes(shape: Shape, rank: int, num_models: int) -> float:
    """Weights, gradients and moments in float32."""
    return num_models * PER_ADAPTER_WEIGHT * num_adapter_weights(shape, rank)


def _num_calls(keys: float) -> float:
    return 1 + math.log(max(keys, BLOCK) / BLOCK) / math.log(CLASS)
