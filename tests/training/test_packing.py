from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import tree_mask

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
    seen = [[column for column, yes in enumerate(line) if yes] for line in tree_mask(one.parents)]
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
            assert one.num_tokens <= max(budget, *(len(rows[r]) for r in one.rows))
            for row, path in zip(one.rows, one.places, strict=True):
                found[row] = one.token_ids[path].tolist()
        assert [found[row] for row in range(60)] == rows


def test_a_cut_tree_repeats_only_its_trunk() -> None:
    # budget 7: rows one and two share a pack (3 + 1 + 1 + 2 = 7), row three brings the trunk again (3 + 1)
    assert [one.num_tokens for one in pack(ROWS, 7)] == [7, 4]


def test_a_tree_that_fits_is_never_cut() -> None:
    # three groups of 2 + 4 * 1 = 6 tokens: two fit a budget of 15, and filling it up would cut the second's trunk off
    groups = [[[head, 9, leaf] for leaf in range(4)] for head in (1, 2, 3)]
    packs = pack([row for group in groups for row in group], 15)
    assert [one.num_tokens for one in packs] == [12, 6]


def test_small_trees_fill_what_large_ones_leave() -> None:
    # 5, 4, 3, 2 tokens under a budget of 7: largest first, 5 + 2 and 4 + 3
    packs = pack([[1] * 5, [2] * 4, [3] * 3, [4] * 2], 7)
    assert sorted(sorted(one.rows) for one in packs) == [[0, 3], [1, 2]]


def test_a_session_of_very_many_turns() -> None:
    # 600 turns of 5 tokens: 3,000 in all are beyond the budget, but no turn but the last adds any to it
    said = list(range(3000))
    (one,) = pack([said[:end] for end in range(5, 3001, 5)], 1000)
    assert one.num_tokens == 3000
    assert sorted(one.rows) == list(range(600))


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=40),
    st.integers(1, 60),
)
def test_each_row_is_spelled_once_within_the_budget(rows: list[list[int]], budget: int) -> None:
    packs = pack(rows, budget)
    spelled = {
        row: one.token_ids[path].tolist() for one in packs for row, path in zip(one.rows, one.places, strict=True)
    }
    assert [spelled[row] for row in range(len(rows))] == rows
    assert sum(len(one.rows) for one in packs) == len(rows)
    for one in packs:
        longest = max(len(path) for path in one.places)
        assert one.num_tokens <= max(budget, longest)
    unique = len({tuple(row[:end]) for row in rows for end in range(1, len(row) + 1)})
    if unique <= budget:
        assert len(packs) == 1
        assert packs[0].num_tokens == unique


def test_an_empty_sequence_is_refused() -> None:
    with pytest.raises(InputError, match="no tokens"):
        pack([[1], []])
