"""Token ids as little-endian int32, log-probabilities as little-endian float32."""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Iterable


def pack_ids(ids: Iterable[int]) -> bytes:
    """Raises OverflowError for an id that does not fit int32."""
    return _bytes(array("i", ids))


def unpack_ids(data: bytes) -> tuple[int, ...]:
    return tuple(_array("i", data))


def pack_floats(values: Iterable[float | None]) -> bytes:
    """`None` becomes NaN; values are rounded to float32."""
    return _bytes(array("f", (math.nan if value is None else value for value in values)))


def unpack_floats(data: bytes) -> tuple[float | None, ...]:
    """NaN becomes `None`: a missing log-probability is never a number."""
    return tuple(None if math.isnan(value) else value for value in _array("f", data))


def _bytes(values: array) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def _array(code: str, data: bytes) -> array:
    values = array(code)
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values
