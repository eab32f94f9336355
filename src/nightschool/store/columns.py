"""What all tables are made of: their metadata, and types of columns that are short in Python and on disk."""

from __future__ import annotations

import zlib
from typing import Any

from sqlalchemy import LargeBinary, MetaData
from sqlalchemy.types import TypeDecorator

from nightschool.store.phrases import MESSAGES

metadata = MetaData()

WORTH_PACKING = 128
SMALL_BYTES = 4096
PLAIN, DEFLATED, PACKED = b"\0", b"\1", b"\2"  # the second as earlier versions wrote it


class Digest(TypeDecorator[str]):
    """A hash: lower-case hex in Python, bytes in the database."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> bytes | None:
        return None if value is None else bytes.fromhex(value)

    def process_result_value(self, value: bytes | None, dialect: Any) -> str | None:
        return None if value is None else bytes(value).hex()


class Packed(TypeDecorator[bytes]):
    """Bytes, compressed where that saves something. The first byte says which."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: bytes | None, dialect: Any) -> bytes | None:
        return None if value is None else pack(value)

    def process_result_value(self, value: bytes | None, dialect: Any) -> bytes | None:
        return None if value is None else unpack(bytes(value))


class Ready(bytes):
    """Bytes that no packing makes smaller."""


def pack(data: bytes) -> bytes:
    if len(data) >= WORTH_PACKING and not isinstance(data, Ready):
        packer = (_small if len(data) + len(MESSAGES) <= SMALL_BYTES else _large).copy()
        packed = packer.compress(data) + packer.flush()
        if len(packed) < len(data):
            return PACKED + packed
    return PLAIN + data


def unpack(stored: bytes) -> bytes:
    if stored[:1] == PACKED:
        return inflate(stored[1:], MESSAGES)
    return zlib.decompress(stored[1:]) if stored[:1] == DEFLATED else stored[1:]


def deflate(data: bytes, known: bytes) -> bytes:
    """`data` as whoever has `known` needs it."""
    packer = _packer(known, small=len(data) + len(known) <= SMALL_BYTES)
    return packer.compress(data) + packer.flush()


def inflate(packed: bytes, known: bytes) -> bytes:
    return zlib.decompressobj(-15, known).decompress(packed)


def _packer(known: bytes, small: bool) -> Any:
    # a window no larger than need be: getting the memory for one takes longer than packing a message
    window, level = (12, 5) if small else (15, 8)
    return zlib.compressobj(1, zlib.DEFLATED, -window, level, zlib.Z_DEFAULT_STRATEGY, known)


# They have read the phrases; a copy need not read them again.
_small, _large = _packer(MESSAGES, small=True), _packer(MESSAGES, small=False)
