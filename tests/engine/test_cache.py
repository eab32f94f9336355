"""Kept prefixes: longest match, replacement, budget."""

from __future__ import annotations

import numpy as np
import torch

from nightschool.engine.cache import PrefixStore, RowCache, common_prefix


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def kv(length: int, value: float = 0.0) -> torch.Tensor:
    return torch.full((1, 2, 1, length, 2), value)  # 16 bytes a token


def test_common_prefix():
    assert common_prefix(ids(1, 2, 3), ids(1, 2, 4, 5)) == 2
    assert common_prefix(ids(1, 2), ids(1, 2, 3)) == 2
    assert common_prefix(ids(), ids(1)) == 0


def test_the_longest_prefix_of_the_same_adapter_is_found():
    store = PrefixStore(10_000)
    store.keep("", ids(1, 2, 3), kv(3, 1.0))
    store.keep("", ids(1, 2, 9, 9), kv(4, 2.0))
    store.keep("other", ids(1, 2, 3, 4), kv(4, 3.0))
    found, length = store.longest("", ids(1, 2, 3, 4, 5))
    assert length == 3
    assert found.shape == (1, 2, 1, 3, 2)
    assert found.unique().tolist() == [1.0]
    assert store.longest("", ids(7)) == (None, 0)


def test_a_longer_sequence_replaces_the_one_it_extends():
    store = PrefixStore(10_000)
    store.keep("", ids(1, 2), kv(2))
    store.keep("", ids(1, 2, 3), kv(3))
    assert len(store) == 1
    assert store.used_bytes == 48
    assert store.covers("", ids(1, 2))
    assert not store.covers("", ids(2))


def test_the_least_recently_used_goes_first():
    store = PrefixStore(96)
    store.keep("", ids(1, 1), kv(2))
    store.keep("", ids(2, 2), kv(2))
    store.longest("", ids(1, 1, 5))  # used again
    store.keep("", ids(3, 3, 3), kv(3))  # 7 tokens = 112 bytes: one has to go
    assert store.longest("", ids(2, 2))[1] == 0
    assert store.longest("", ids(1, 1))[1] == 2
    assert store.used_bytes == 80


def test_dropping_an_adapter_frees_its_bytes():
    store = PrefixStore(10_000)
    store.keep("a", ids(1), kv(1))
    store.keep("b", ids(1), kv(1))
    store.drop("a")
    assert (store.longest("a", ids(1))[1], store.longest("b", ids(1))[1], store.used_bytes) == (0, 1, 16)


def test_rows_move_all_at_once(reference):
    cache = RowCache(reference.config, 4, 8, torch.float32, torch.device("cpu"))
    for row in range(4):
        cache.kv[:, :, row] = row
    cache.move([0, 2, 1], [1, 0, 2], 8)
    assert [cache.kv[0, 0, row, 0, 0, 0].item() for row in range(4)] == [2, 0, 1, 3]
