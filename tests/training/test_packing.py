from __future__ import annotations

import random

import pytest

from nightschool.errors import InputError
from nightschool.training.packing import pack

SYSTEM = [1, 2, 3]
ROWS = [[*SYSTEM, 4, 5], [*SYSTEM, 4, 6, 7], [*SYSTEM, 8]]


def test_every_unique_prefix_token_once() -> None:
    (one,) = pack(ROWS)
    # 1 2 3 | 4 | 5 | 6 7 | 8: three shared, one shared by two rows, four of their own
    assert one.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert one.position_ids.tolist() == [0, 1, 2, 3, 4, 4, 5, 3]
    assert one.parents.tolist() == [-1, 0, 1, 2, 3, 3, 5, 2]


def test_a_token_sees_its_ancestors_and_itself_only() -> None:
    (one,) = pack(ROWS)
    seen = [[column for column, yes in enumerate(line) if yes] for line in one.tree_mask()]
    assert seen == [
        [0],
        [0, 1],
        [0, 1, 2],
        [0, 1, 2, 3],
        [0, 1, 2, 3, 4],
        [0, 1, 2, 3, 5],
        [0, 1, 2, 3, 5, 6],
        [0, 1, 2, 7],
    ]


def test_places_spell_every_row_whatever_the_budget() -> None:
    rng = random.Random(0)
    rows = [[rng.randrange(3) for _ in range(rng.randrange(1, 12))] for _ in range(60)]
    for budget in (1, 7, 20, 4096):
        found = {}
        for one in pack(rows, budget):
            assert one.num_tokens <= budget or len(one.rows) == 1 or len({tuple(rows[r]) for r in one.rows}) == 1
            for row, path in zip(one.rows, one.places, strict=True):
                found[row] = one.token_ids[path].tolist()
        assert [found[row] for row in range(60)] == rows


def test_a_cut_forest_repeats_only_the_shared_prefix() -> None:
    # budget 7: rows one and two share a pack (3 + 1 + 1 + 2 = 7), row three brings the prefix again (3 + 1)
    assert [one.num_tokens for one in pack(ROWS, 7)] == [7, 4]


def test_an_empty_sequence_is_refused() -> None:
    with pytest.raises(InputError, match="no tokens"):
        pack([[1], []])
