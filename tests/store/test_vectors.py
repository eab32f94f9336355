import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightschool.store.vectors import pack_floats, pack_ids, unpack_floats, unpack_ids


def test_layout_is_little_endian():
    # 1 and -2 as little-endian int32; 1.0 is 0x3F800000
    assert pack_ids([1, -2]) == bytes([1, 0, 0, 0, 0xFE, 0xFF, 0xFF, 0xFF])
    assert pack_floats([1.0]) == bytes([0, 0, 0x80, 0x3F])


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_ids_round_trip(ids):
    assert unpack_ids(pack_ids(ids)) == tuple(ids)


@given(st.lists(st.none() | st.floats(width=32, allow_nan=False)))
def test_floats_round_trip(values):
    assert unpack_floats(pack_floats(values)) == tuple(values)


def test_missing_is_stored_as_nan_and_nan_is_missing():
    assert math.isnan(struct.unpack("<f", pack_floats([None]))[0])
    assert unpack_floats(pack_floats([math.nan, 0.0])) == (None, 0.0)


def test_an_id_beyond_int32_is_refused():
    with pytest.raises(OverflowError):
        pack_ids([2**31])
