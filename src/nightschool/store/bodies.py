"""Raw bodies, restored byte for byte, in which everything resent is stored once.

A client resends the whole conversation with every turn. A body is therefore kept as a row of segments:
literal bytes, and references to blobs that hold the exact spelling of one element of the top-level
`messages` array, or of the top-level `tools`. Whatever cannot be read as JSON is one literal. So that the
references of a long conversation do not add up either, every eighth message closes a page: a blob of the
segments since the last page, which begins with a reference to that one. A body then is its head, one page,
at most seven messages and its tail, however long the conversation.
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
from nightschool.store.blobs import get_blob, get_blobs, put_hashed
from nightschool.store.schema import bodies

MESSAGE, TOOLS = "messages", "tools"
WORTH_SHARING = 48  # a reference takes 33 bytes
WORTH_PACKING = 256
PLAIN, PACKED = b"\0", b"\1"
LITERAL, REFERENCE, PAGE = 0, 1, 2
DIGEST_BYTES = 32
PAGE_MESSAGES = 8

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
    encoded, groups = _encode(scan(raw) if segments is None else segments)
    for group in reversed(groups):
        known = put_hashed(conn, tenant, group)
        if next(iter(group), None) in known and group is not groups[0]:
            break  # its page is stored, and so is everything before it
    row = {"tenant": tenant, "hash": body_hash, "size_bytes": len(raw), "segments": _pack(encoded)}
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
    parts: list[bytes | str] = []  # literals, and hashes of blobs
    todo = _decode(_unpack(packed))[::-1]
    while todo:
        code, data = todo.pop()
        if code == PAGE:
            todo += _decode(get_blob(conn, tenant, data.hex()))[::-1]
        else:
            parts.append(data.hex() if code == REFERENCE else data)
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


def _encode(segments: Sequence[Segment]) -> tuple[bytes, list[dict[str, bytes]]]:
    """The bytes that stand for `segments`, and the blobs they refer to, by hash.

    The blobs come in groups: all but the first begin with the page that closes what is before it.
    """
    groups: list[dict[str, bytes]] = [{}]
    head: list[bytes] = []
    run: list[bytes] = []  # from the first message on
    num_messages = 0
    for data, kind in segments:
        if kind == MESSAGE and num_messages == 0:
            head, run = run, []
        worth_it = kind and len(data) >= WORTH_SHARING
        run.append(_refer(REFERENCE, data, groups[-1]) if worth_it else _literal(data))
        num_messages += kind == MESSAGE
        if kind == MESSAGE and num_messages % PAGE_MESSAGES == 0:
            groups.append({})
            run = [_refer(PAGE, b"".join(run), groups[-1])]
    return b"".join(head + run), groups


def _refer(code: int, data: bytes, shared: dict[str, bytes]) -> bytes:
    digest = hashlib.sha256(data)
    shared[digest.hexdigest()] = data
    return bytes([code]) + digest.digest()


def _literal(data: bytes) -> bytes:
    return bytes([LITERAL]) + struct.pack("<I", len(data)) + data if data else b""


def _decode(data: bytes) -> list[tuple[int, bytes]]:
    """(code, literal bytes or digest) in order."""
    parts: list[tuple[int, bytes]] = []
    at = 0
    while at < len(data):
        start, length = at + 1, DIGEST_BYTES
        if data[at] == LITERAL:
            start, length = at + 5, struct.unpack_from("<I", data, at + 1)[0]
        parts.append((data[at], data[start : start + length]))
        at = start + length
    return parts


def _pack(data: bytes) -> bytes:
    if len(data) >= WORTH_PACKING:
        packed = zlib.compress(data, 1)
        if len(packed) < len(data):
            return PACKED + packed
    return PLAIN + data


def _unpack(stored: bytes) -> bytes:
    return zlib.decompress(stored[1:]) if stored[:1] == PACKED else stored[1:]
