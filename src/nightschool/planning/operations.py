"""Floating-point operations that a pass executes: a frozen base, an adapter on its linear layers, attention, the output
layer.

A multiplication with an addition is two. Attention is counted by the pairs of a token and one that it sees, whatever
its blocks compute besides.
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


def factors(shape: Shape, rank: int) -> tuple[int, int]:
    """Weights of one block's A and of its B as they are multiplied: layers that read one input stand side by side, and
    each has the outputs of all."""
    h, q, kv, f = shape.hidden, shape.query_width, shape.kv_width, shape.ffn
    groups = ((3, h, q + 2 * kv), (1, q, h), (2, h, 2 * f), (1, f, h))
    return rank * sum(n * wide for n, wide, _ in groups), rank * sum(n * high for n, _, high in groups)


def forward_operations(shape: Shape, rank: int, tokens: Tokens) -> float:
    """Of a pass without gradient: 2 per weight and token; per pair and query width 2 for the score, 2 for the value."""
    return body_operations(shape, rank, tokens) + _head(shape, tokens)


def body_operations(shape: Shape, rank: int, tokens: Tokens) -> float:
    """As `forward_operations`, without the output layer."""
    weights = shape.num_layers * (shape.num_layer_weights + sum(factors(shape, rank)))
    return 2 * weights * tokens.num + 4 * shape.num_layers * shape.query_width * tokens.context


def training_operations(shape: Shape, rank: int, tokens: Tokens) -> float:
    """Of a pass with its gradient.

    The base is frozen, so each of its products has one gradient, that of its input, and costs 4 per weight and token,
    not 6. Of the adapter both have one, and A is multiplied once more; attention scores are computed twice. The output
    layer's gradient is taken with its forward.
    """
    a, b = factors(shape, rank)
    weights = shape.num_layers * (4 * shape.num_layer_weights + 8 * a + 6 * b)
    attention = 14 * shape.num_layers * shape.query_width * tokens.context
    return weights * tokens.num + attention + 2 * _head(shape, tokens)


def decoding_operations(shape: Shape, rank: int, tokens: Tokens) -> float:
    """Of drawing tokens one at a time; each of them is scored."""
    return forward_operations(shape, rank, replace(tokens, scored=tokens.num))


def _head(shape: Shape, tokens: Tokens) -> float:
    return 2 * shape.hidden * shape.vocab * tokens.scored
