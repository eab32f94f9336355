import pytest

from nightschool.errors import StoreError
from nightschool.store.database import Store
from nightschool.store.splits import split_key, split_of
from nightschool.types import Split


def test_shares_are_eighty_ten_ten():
    splits = [split_of(b"key", f"user {n}") for n in range(10_000)]
    # a share of 0.1 of 10,000 has a standard deviation of 30
    assert abs(splits.count(Split.SELECT) - 1000) < 120
    assert abs(splits.count(Split.GATE) - 1000) < 120


def test_a_split_is_stable_and_depends_on_the_key():
    # HMAC-SHA256(key "key", text "ada") begins 708a727d: a share of 0x708a727d / 2**32 = 0.4396, below 0.8
    assert split_of(b"key", "ada") == Split.TRAIN
    differing = sum(split_of(b"key", f"user {n}") != split_of(b"key 2", f"user {n}") for n in range(1000))
    assert differing > 200  # 1 - (0.64 + 0.01 + 0.01) = 0.34 of them


def test_the_key_is_made_once_and_kept(place):
    with Store.open(place) as store, store.read() as conn:
        first = split_key(conn, "default")
    with Store.open(place) as store, store.read() as conn:
        assert split_key(conn, "default") == first
        assert len(first) == 32
        with pytest.raises(StoreError):
            split_key(conn, "never opened")
    with Store.open(place, tenant="other") as store, store.read() as conn:
        assert split_key(conn, "other") != first
