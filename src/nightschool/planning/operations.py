"""Floating-point operations of a pass: a frozen base, an adapter on its linear layers, attention, the output layer.

A multiplication with an addition is two. What is needed is counted, not what a kernel executes: attention counts each
token's own ancestors, whatever the blocks that compute it look at besides.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace

from nightschool.models.shapes import Shape


@dataclass(frozen=True, slots=True)
class Tokens:
    """What goes through a model. `num` tokens; `context` the sum over them of the tokens that each attends to, itself
    included; `scored` the places whose output layer is computed; `passes` the packs that all of this came in."""

    num: float = 0.0
    context: float = 0.0
    scored: float = 0.0
    passes: float = 0.0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(*(one + more for one, more in zip(astuple(self), astuple(other), strict=True)))

    def times(self, factor: float) -> Tokens:
        return Tokens(*(factor * one for one in astuple(self)))


def num_adapter_weights(shape: Shape, rank: int) -> int:
    """Weights of A and B on every linear layer."""
    return shape.num_layers * rank * sum(wide + high for wide, high in shape.linear().values())


def forward_operations(shape: Shape, rank: int, tokens: Tokens) -> float:
    """Of a pass without gradient: 2 per weight and token, 2 per query width and pair for scores and values each."""
    weights = shape.num_layers * shape.num_layer_weights + num_adapter_weights(shape, rank)
    attention = 4 * shape.num_layers * shape.query_width * tokens.context
    return 2 * weights * tokens.num + attention + _head(shape, tokens)


def training_operations(shape: Shape, rank: int, tokens: Tokens) -> float:
    """Of a pass with its gradient.

    The base is frozen, so each of its products has one gradient, that of its input, and costs 4 per weight and token,
    not 6; the adapter's have both. Below the first block nothing is trained: what its queries, keys and values read
    needs no gradient. The output layer's gradient is taken with its forward.
    """
    base = shape.num_layers * shape.num_layer_weights
    adapter = num_adapter_weights(shape, rank)
    lowest = [shape.linear()[name] for name in ("q_proj", "k_proj", "v_proj")]
    spared = sum(wide * high + rank * wide for wide, high in lowest)
    attention = 12 * shape.num_layers * shape.query_width * tokens.context
    return (4 * base + 6 * adapter - 2 * spared) * tokens.num + attention + 2 * _head(shape, tokens)


def decoding_operations(shape: Shape, rank: int, tokens: Tokens) -> float:
    """Of drawing tokens one at a time; each of them is scored."""
    return forward_operations(shape, rank, replace(tokens, scored=tokens.num))


def _head(shape: Shape, tokens: Tokens) -> float:
    return 2 * shape.hidden * shape.vocab * tokens.scored
