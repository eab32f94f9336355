"""Operations and bytes of a tiny model, by hand."""

from dataclasses import replace

from nightschool.models.shapes import Shape
from nightschool.planning.memory import (
    activation_bytes,
    adapter_bytes,
    cache_bytes,
    head_bytes,
    kept_per_token,
    packed_bytes,
    weight_bytes,
    whole_layers,
    working_bytes,
)
from nightschool.planning.operations import (
    Tokens,
    body_operations,
    decoding_operations,
    factors,
    forward_operations,
    num_adapter_weights,
    training_operations,
)

TINY = Shape("tiny", 2, 4, 2, 1, 2, 6, 10)  # 2 blocks, hidden 4, 2 heads of 2, 1 key head, ffn 6, vocabulary 10
CHAIN = Tokens(num=5, context=15, scored=2)  # five tokens in a row see 1 + 2 + 3 + 4 + 5


def test_the_adapter():
    # in + out: q 8, k 6, v 6, o 8, gate 10, up 10, down 10 = 58; times rank 3 and 2 blocks
    assert num_adapter_weights(TINY, 3) == 348
    # side by side: q, k, v three times 4 -> 8, o 4 -> 4, gate and up twice 4 -> 12, down 6 -> 4
    assert factors(TINY, 3) == (3 * (12 + 4 + 8 + 6), 3 * (24 + 4 + 24 + 4))
    # float32 weight, gradient and two moments; of what is multiplied, 2 bytes and a float32 gradient; two adapters
    assert adapter_bytes(TINY, 3, 2, num_models=2) == 2 * (348 * 16 + 2 * (90 + 168) * 6)


def test_a_pass_without_gradient():
    # weights of products 2 x (120 + 90 + 168) = 756, twice for each of 5 tokens: 7,560
    # attention: 4 x 2 blocks x width 4 x 15 = 480; the output layer 2 x 4 x 10 for each of 2 places = 160
    assert forward_operations(TINY, 3, CHAIN) == 7560 + 480 + 160
    assert body_operations(TINY, 3, CHAIN) == 7560 + 480
    # drawing computes the output layer at every token: 400
    assert decoding_operations(TINY, 3, CHAIN) == 7560 + 480 + 400


def test_a_pass_with_gradient():
    # of a block: 4 x 120 of the base, 8 x 90 of A, 6 x 168 of B: 2,208; two blocks, five tokens: 22,080
    # attention 14 x 2 x 4 x 15 = 1,680; the output layer twice
    assert training_operations(TINY, 3, CHAIN) == 22_080 + 1680 + 320


def test_passes_add_up():
    twice = CHAIN + CHAIN
    assert twice == CHAIN.times(2)
    assert training_operations(TINY, 3, twice) == 2 * training_operations(TINY, 3, CHAIN)


def test_what_a_pass_keeps():
    # inputs 2 x 4, queries and what they read 2 x 4, keys and values 2 x 2, gate and up 2 x 6: 32 of 2 bytes
    assert kept_per_token(TINY, 2) == 64
    assert kept_per_token(replace(TINY, norms_heads=True), 2) == 64 + 2 * (4 + 2)
    assert activation_bytes(TINY, 2, 100) == 2 * 100 * 64
    # 2^26 tokens keep 4 GiB a block: one block is kept, the other's input, and it whole while it is computed again
    assert whole_layers(TINY, 2, 2**26) == 1
    assert activation_bytes(TINY, 2, 2**26) == 2**26 * (64 + 8 + 64)
    assert activation_bytes(TINY, 2, 100, checkpointed=True) == 100 * (64 + 8 + 64)


def test_what_a_block_works_with():
    # 3 x 4 + 2 x 4 + 2 x 2 of 2 bytes and 2 x 2 of 4 for each token; 6 x 6 of 2 for each of at most 2,048 rows
    assert working_bytes(TINY, 2, 5000, on_cpu=True) == 5000 * 64 + 2048 * 72
    assert working_bytes(TINY, 2, 5000, on_cpu=False) == 5000 * (64 + 72)


def test_the_rest():
    assert weight_bytes(TINY, 2) == 600
    # 2 rows of 10 logits, with their probabilities, in 2 and in 4 bytes; two slopes of width 4
    assert head_bytes(TINY, 2, num_scored=2) == 2 * 10 * 2 * (2 + 4) + 2 * 4 * 2 * 2
    assert head_bytes(TINY, 2, 10_000) - head_bytes(TINY, 2, 1000) == 9000 * 4 * 2 * 2  # one chunk, however many
    assert cache_bytes(TINY, 2, 7) == 2 * 2 * 2 * 2 * 7
    assert packed_bytes(TINY, 2) == 2 * 2 * (2 * 120 + 4 * 10)
