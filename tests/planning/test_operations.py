"""Operations and bytes of a tiny model, by hand."""

import pytest

from nightschool.models.shapes import Shape
from nightschool.planning.memory import (
    Largest,
    adapter_bytes,
    cache_bytes,
    head_bytes,
    kept_checkpointed,
    kept_per_token,
    weight_bytes,
)
from nightschool.planning.operations import (
    Tokens,
    decoding_operations,
    forward_operations,
    num_adapter_weights,
    training_operations,
)

TINY = Shape("tiny", 2, 4, 2, 1, 2, 6, 10)  # 2 blocks, hidden 4, 2 heads of 2, 1 key head, ffn 6, vocabulary 10
CHAIN = Tokens(num=5, context=15, scored=2)  # five tokens in a row see 1 + 2 + 3 + 4 + 5


def test_the_adapter():
    # in + out: q 8, k 6, v 6, o 8, gate 10, up 10, down 10 = 58; times rank 3 and 2 blocks
    assert num_adapter_weights(TINY, 3) == 348
    assert adapter_bytes(TINY, 3, num_models=2) == 2 * 348 * 16  # float32: weight, gradient, two moments


def test_a_pass_without_gradient():
    # weights of products 2 x 120 + 348 = 588, twice for each of 5 tokens: 5,880
    # attention: 4 x 2 blocks x width 4 x 15 = 480; the output layer 2 x 4 x 10 for each of 2 places = 160
    assert forward_operations(TINY, 3, CHAIN) == 5880 + 480 + 160
    # drawing computes the output layer at every token: 400
    assert decoding_operations(TINY, 3, CHAIN) == 5880 + 480 + 400


def test_a_pass_with_gradient():
    # the base 4 x 240, the adapter 6 x 348, without what lies below the first block's q, k, v:
    # twice 16 + 8 + 8 and 3 x (4 + 4 + 4) = 136; 2,912 a token, 14,560; attention 3 x 480; the output layer twice
    assert training_operations(TINY, 3, CHAIN) == 14_560 + 1440 + 320


def test_passes_add_up():
    twice = CHAIN + CHAIN
    assert twice == CHAIN.times(2)
    assert training_operations(TINY, 3, twice) == 2 * training_operations(TINY, 3, CHAIN)


def test_what_a_token_keeps():
    # read by adapters 2 x 4 + 4 + 7 x 3 = 33, queries 4, keys and values 2 x 2 x 64 / 64 = 4, attention 2 x 64 = 128,
    # ffn 24: 193 of 2 bytes; the norms' inputs 2 x 4 of 4 bytes; two blocks
    assert kept_per_token(TINY, 3, 2, keys=64, num_tokens=1000) == 2 * (386 + 32)
    # 200,000 tokens x 128 scores exceed one call's 16 million: a number a head is kept instead
    assert kept_per_token(TINY, 3, 2, keys=64, num_tokens=200_000) == 2 * (2 * (193 - 128 + 2) + 32)
    # the inputs of two blocks, and one block whole
    assert kept_checkpointed(TINY, 3, 2, keys=64, num_tokens=1000) == 2 * 4 * 2 + 418


def test_the_rest():
    assert weight_bytes(TINY, 2) == 600
    # 2 rows of 10 logits, with their probabilities, in 2 and in 4 bytes; two slopes of width 4
    assert head_bytes(TINY, 2, num_scored=2) == 2 * 10 * 2 * (2 + 4) + 2 * 4 * 2 * 2
    assert head_bytes(TINY, 2, 10_000) - head_bytes(TINY, 2, 1000) == 9000 * 4 * 2 * 2  # one chunk, however many
    assert cache_bytes(TINY, 2, 7) == 2 * 2 * 2 * 2 * 7


def test_keys_of_a_block():
    assert Largest(num_tokens=130, block_keys=600).keys == pytest.approx(200)  # three blocks
    assert Largest().keys == 0
