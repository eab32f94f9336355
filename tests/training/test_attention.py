from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from trees import tree_mask

from nightschool.models.attention import grouped_attention
from nightschool.training.attention import BLOCK, TreePlan, subtree_ends, tree_attention
from nightschool.training.packing import pack

CPU = torch.device("cpu")


def tree_of(seed: int, lengths: list[int]) -> list[list[int]]:
    """Branches that leave a shared prefix at random depths."""
    rng = random.Random(seed)
    trunk = [rng.randrange(9) for _ in range(max(lengths))]
    return [[*trunk[: rng.randrange(1, n)], *[rng.randrange(9) for _ in range(n)]] for n in lengths]


@pytest.mark.parametrize(
    "lengths",
    [[5, 9, 3], [40] * 12, [500, 30, 30, 80, 10], [BLOCK // 2], [BLOCK] * 3],
    ids=["less than a block", "many branches", "long and short", "one row", "block edges"],
)
def test_values_and_gradients_are_those_of_a_dense_mask(lengths: list[int]) -> None:
    (one,) = pack(tree_of(7, lengths))
    plan = TreePlan.of(one, torch.float32, CPU)
    torch.manual_seed(0)
    shapes = ((1, 6, one.num_tokens, 8), (1, 2, one.num_tokens, 8), (1, 2, one.num_tokens, 8))
    q, k, v = (torch.randn(shape, requires_grad=True) for shape in shapes)
    wanted = torch.randn(1, one.num_tokens, 6, 8)
    mask = torch.from_numpy(tree_mask(one.parents))[None, None]
    found, _ = tree_attention(torch.nn.Module(), q, k, v, None, 0.3, tree=plan)
    dense, _ = grouped_attention(torch.nn.Module(), q, k, v, mask, 0.3)
    assert (found - dense).abs().max() < 1e-5
    mine = torch.autograd.grad((found * wanted).sum(), (q, k, v))
    theirs = torch.autograd.grad((dense * wanted).sum(), (q, k, v))
    for a, b in zip(mine, theirs, strict=True):
        assert (a - b).abs().max() < 1e-4


def test_a_block_reads_only_its_ancestors() -> None:
    # 20 branches of 100 tokens on a prefix of 100: dense, each of the 2,100 nodes would read 2,100 keys
    trunk = list(range(100))
    (one,) = pack([[*trunk, 200 + branch, *range(99)] for branch in range(20)])
    plan = TreePlan.of(one, torch.float32, CPU)
    assert one.num_tokens == 2100
    keys = [sum(end - first for first, end in block.ranges) for block in plan.blocks]
    # a block of 128 spans at most three branches: 100 shared + the rests of three, far below 2,100
    assert max(keys) <= 100 + 3 * 100
    assert [(block.first, block.end) for block in plan.blocks] == [
        (first, min(first + BLOCK, 2100)) for first in range(0, 2100, BLOCK)
    ]


def test_a_node_is_followed_by_its_descendants() -> None:
    #   0 - 1 - 2
    #    \   \ 3
    #     4        5 (a root)
    assert subtree_ends(np.array([-1, 0, 1, 1, 0, -1])).tolist() == [5, 4, 3, 4, 5, 6]
