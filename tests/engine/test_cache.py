"""Kept prefixes: longest match, replacement, budget."""

from __future__ import annotations

import numpy as np
import torch

from nightschool.engine.cache import PrefixStore, RowCache, common_prefix


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def kv(value: float = 0.0):
    """What a row reads of itself: `value` plus the position; 16 bytes a token."""

    def read(start: int, end: int) -> torch.Tensor:
        return (value + torch.arange(start, end))[:, None].expand(1, 2, 1, -1, 2).clone()

    return read


def values(pieces: list[torch.Tensor]) -> list[float]:
    return torch.cat(pieces, 3)[0, 0, 0, :, 0].tolist() if pieces else []


def store_of(tokens: int) -> PrefixStore:
    return PrefixStore(16 * tokens, 16)


def test_common_prefix():
    assert common_prefix(ids(1, 2, 3), ids(1, 2, 4, 5)) == 2
    assert common_prefix(ids(1, 2), ids(1, 2, 3)) == 2
    assert common_prefix(ids(), ids(1)) == 0


def test_the_longest_prefix_of_the_same_adapter_is_found():
    store = store_of(100)
    store.keep("", ids(1, 2, 3), kv(10))
    store.keep("", ids(1, 2, 9, 9), kv(20))
    store.keep("other", ids(1, 2, 3, 4), kv(30))
    pieces, length = store.longest("", ids(1, 2, 3, 4, 5))
    assert (length, values(pieces)) == (3, [10, 11, 12])
    pieces, length = store.longest("", ids(1, 2, 9, 8))
    assert (length, values(pieces)) == (3, [10, 11, 22])  # the beginning is that of the first sequence
    assert store.longest("", ids(1))[1] == 1
    assert store.longest("", ids(7)) == ([], 0)
    assert store.longest("third", ids(1)) == ([], 0)


def test_a_common_beginning_is_held_once():
    store = store_of(1000)
    shared = list(range(100))
    for at in range(20):
        store.keep("", ids(*shared, 200 + at, 7), kv())
    assert len(store) == 20
    assert store.used_bytes == 16 * (100 + 20 * 2)
    store.keep("", ids(*shared[:50]), kv())  # known already
    store.keep("", ids(*shared, 203, 7, 8), kv())  # one token more than a known one
    assert (len(store), store.used_bytes) == (20, 16 * 141)


def test_the_least_recently_used_end_goes_first_and_the_beginning_stays():
    store = store_of(8)
    store.keep("", ids(1, 1, 2, 2), kv(10))
    store.keep("", ids(1, 1, 3, 3), kv(20))
    store.longest("", ids(1, 1, 2, 2, 5))  # used again
    store.keep("", ids(4, 4, 4), kv(30))  # 6 + 3 tokens: an end of two has to go
    assert store.longest("", ids(1, 1, 3, 3))[1] == 2
    assert values(store.longest("", ids(1, 1, 2, 2))[0]) == [10, 11, 12, 13]
    assert store.used_bytes == 16 * 7
    store.keep("", ids(5, 5, 5, 5, 5, 5, 5, 5), kv(40))  # all others have to
    assert (len(store), store.used_bytes, store.longest("", ids(1, 1))[1]) == (1, 16 * 8, 0)


def test_what_is_over_the_whole_budget_is_not_kept():
    store = store_of(3)
    store.keep("", ids(1, 1, 1), kv())
    store.keep("", ids(2, 2, 2, 2), kv())
    assert store.longest("", ids(1, 1, 1))[1] == 3
    assert store.longest("", ids(2))[1] == 0


def test_dropping_an_adapter_frees_its_bytes():
    store = store_of(1000)
    store.keep("a", ids(1, 2), kv())
    store.keep("a", ids(1, 3), kv())
    store.keep("b", ids(1), kv())
    store.drop("a")
    assert (store.longest("a", ids(1))[1], store.longest("b", ids(1))[1], store.used_bytes) == (0, 1, 16)


def test_random_sequences_are_found_as_a_list_would_find_them():
    dice = np.random.default_rng(0)
    store, kept = store_of(10**6), []
    for value in range(300):
        new = dice.integers(0, 3, dice.integers(1, 12), dtype=np.int32)
        expected = max((common_prefix(old, new) for old in kept), default=0)
        pieces, length = store.longest("", new)
        assert length == expected
        assert sum(piece.shape[3] for piece in pieces) == length
        store.keep("", new, kv(1000 * value))
        kept.append(new)
    distinct = {tuple(old[:end]) for old in kept for end in range(1, len(old) + 1)}
    assert store.used_bytes == 16 * len(distinct)  # every token once


def test_rows_move_all_at_once(reference):
    cache = RowCache(reference.config, 4, 8, torch.float32, torch.device("cpu"))
    for row in range(4):
        cache.kv[:, :, row] = row
    cache.move([0, 2, 1], [1, 0, 2], 8)
    assert [cache.kv[0, 0, row, 0, 0, 0].item() for row in range(4)] == [2, 0, 1, 3]
