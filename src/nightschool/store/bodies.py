"""Raw bodies, restored byte for byte, in which everything resent is stored once.

A client resends the whole conversation with every turn. A body is therefore kept as a row of segments:
literal bytes, and references to blobs that hold the exact spelling of one element of the top-level
`messages` array, or of the top-level `tools`. Whatever cannot be read as JSON is one literal.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from nightschool.errors import StoreError
from nightschool.store.blobs import get_blobs, put_blobs
from nightschool.store.schema import bodies

MESSAGE, TOOLS = "messages", "tools"
WORTH_SHARING = 48  # a reference takes 33 bytes
WORTH_PACKING = 256
PLAIN, PACKED = b"\0", b"\1"
LITERAL, REFERENCE = 0, 1

_space = re.compile(r"[ \t\n\r]*")
_decoder = json.JSONDecoder()


class Segment(NamedTuple):
    """A stretch of a body. `kind` is "messages" or "tools" for what may be shared, else empty."""

    data: bytes
    kind: str = ""


def put_body(conn: sa.Connection, tenant: str, raw: bytes, segments: Sequence[Segment] | None = None) -> str:
    """Store `raw`; its SHA-256. `segments` saves scanning again what `scan` has read."""
    body_hash = hashlib.sha256(raw).hexdigest()
    known = sa.select(bodies.c.hash).where(bodies.c.tenant == tenant, bodies.c.hash == body_hash)
    if conn.scalar(known) is not None:
        return body_hash
    segments = scan(raw) if segments is None else segments
    shared = [s.data for s in segments if s.kind and len(s.data) >= WORTH_SHARING]
    hashes = iter(put_blobs(conn, tenant, shared))
    parts: list[bytes] = []
    literal = b""
    for data, kind in segments:
        if kind and len(data) >= WORTH_SHARING:
            parts += [_literal(literal), bytes([REFERENCE]), bytes.fromhex(next(hashes))]
            literal = b""
        else:
            literal += data
    stored = _pack(b"".join([*parts, _literal(literal)]))
    row = {"tenant": tenant, "hash": body_hash, "size_bytes": len(raw), "segments": stored}
    conn.execute(sa.insert(bodies), row)
    return body_hash


def get_body(conn: sa.Connection, tenant: str, body_hash: str) -> bytes:
    """The body as it was put, byte for byte.

    Raises:
        StoreError: it is not there, or what is restored does not have this hash.
    """
    query = sa.select(bodies.c.segments).where(bodies.c.tenant == tenant, bodies.c.hash == body_hash)
    packed = conn.scalar(query)
    if packed is None:
        raise StoreError(f"Body {body_hash[:12]} is not in the store.", "", "nightschool doctor")
    parts = list(_unpack(packed))
    shared = get_blobs(conn, tenant, [part for part in parts if isinstance(part, str)])
    raw = b"".join(shared[part] if isinstance(part, str) else part for part in parts)
    if hashlib.sha256(raw).hexdigest() != body_hash:
        raise StoreError(f"Body {body_hash[:12]} cannot be restored.", "The store is damaged.", "nightschool doctor")
    return raw


def scan(raw: bytes) -> list[Segment]:
    """Cut a body into segments; joined they are `raw`.

    Linear: the values are skipped by the JSON decoder, in C. Reading stops without complaint at the first
    thing that is not JSON, for a cut need not be right to be restored, only to be shared.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return [Segment(raw)]
    segments: list[Segment] = []
    done = 0
    try:
        for start, end, kind in _spans(text):
            segments.append(Segment(text[done:start].encode()))
            segments.append(Segment(text[start:end].encode(), kind))
            done = end
    except (ValueError, IndexError, RecursionError):
        pass
    return [*segments, Segment(text[done:].encode())]


def _spans(text: str) -> Iterator[tuple[int, int, str]]:
    """(start, end, kind) of the values worth sharing in a JSON object."""
    at = _enter(text, _skip(text, 0), "{")
    while text[at] != "}":
        key, at = _decoder.raw_decode(text, at)
        at = _enter(text, _skip(text, at), ":")
        if key == MESSAGE and text[at] == "[":
            at = _skip(text, at + 1)
            while text[at] != "]":
                _, end = _decoder.raw_decode(text, at)
                yield at, end, MESSAGE
                at = _next(text, end, "]")
            end = at + 1
        else:
            _, end = _decoder.raw_decode(text, at)
            if key == TOOLS:
                yield at, end, TOOLS
        at = _next(text, end, "}")


def _skip(text: str, at: int) -> int:
    match = _space.match(text, at)
    return match.end() if match else at


def _enter(text: str, at: int, mark: str) -> int:
    if text[at] != mark:
        raise ValueError(f"no {mark} at {at}")
    return _skip(text, at + 1)


def _next(text: str, at: int, close: str) -> int:
    """From behind a value to the next one, or to the closing bracket."""
    at = _skip(text, at)
    return at if text[at] == close else _enter(text, at, ",")


def _literal(data: bytes) -> bytes:
    return bytes([LITERAL]) + struct.pack("<I", len(data)) + data if data else b""


def _pack(data: bytes) -> bytes:
    if len(data) >= WORTH_PACKING:
        packed = zlib.compress(data, 1)
        if len(packed) < len(data):
            return PACKED + packed
    return PLAIN + data


def _unpack(stored: bytes) -> Iterator[bytes | str]:
    """Literals as bytes, references as the hash's hex."""
    data = zlib.decompress(stored[1:]) if stored[:1] == PACKED else stored[1:]
    at = 0
    while at < len(data):
        if data[at] == REFERENCE:
            yield data[at + 1 : at + 33].hex()
            at += 33
        else:
            (length,) = struct.unpack_from("<I", data, at + 1)
            yield data[at + 5 : at + 5 + length]
            at += 5 + length
