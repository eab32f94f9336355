"""Types of columns: what is short to read in Python and short on disk."""

from __future__ import annotations

import zlib
from typing import Any

from sqlalchemy import LargeBinary
from sqlalchemy.types import TypeDecorator

WORTH_PACKING = 256
PLAIN, PACKED = b"\0", b"\1"


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
        # a window no larger than need be: getting the memory for one takes longer than packing a message
        packer = zlib.compressobj(1, zlib.DEFLATED, *((12, 5) if len(data) <= 4096 else (15, 8)))
        packed = packer.compress(data) + packer.flush()
        if len(packed) < len(data):
            return PACKED + packed
    return PLAIN + data


def unpack(stored: bytes) -> bytes:
    return zlib.decompress(stored[1:]) if stored[:1] == PACKED else stored[1:]
