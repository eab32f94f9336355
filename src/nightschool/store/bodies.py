"""Raw bodies, restored byte for byte, in which everything resent is stored once.

A client resends the whole conversation with every turn. A body is therefore kept as a row of segments: literal
bytes, and references to what is stored already. Where the elements of the top-level `messages` are the messages
of a branch of the tree, one reference to its leaf stands for all of them, and a number for each that is not
spelled as the tree keeps it. Where they are not, each element is a reference to a blob that holds its spelling,
and so that these do not add up either, every eighth message closes a page: a blob of the segments since the
last page, which begins with a reference to that one. The top-level `tools` are a blob. Whatever cannot be read
as JSON is one literal. Of a reply, plain or streamed, what its message does not say is kept: it is deflated with the
message as dictionary.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa

from nightschool.errors import StoreError
from nightschool.store.attachments import MIN_CHARS, RUN
from nightschool.store.blobs import get_blob, get_blobs, put_hashed
from nightschool.store.columns import Ready, deflate, inflate
from nightschool.store.memo import Memo
from nightschool.store.phrases import REPLIES
from nightschool.store.prepared import Prepared, insert_into
from nightschool.store.schema import bodies
from nightschool.store.tree import Node, load_content, load_spelled

MESSAGE, TOOLS, ATTACHMENT = "messages", "tools", "attachment"
MESSAGE_KEYS = (MESSAGE, "input")  # the second in OpenAI Responses
WORTH_SHARING = 48  # a reference takes 33 bytes
LITERAL, REFERENCE, PAGE, BRANCH, REPLY = 0, 1, 2, 3, 4
DIGEST_BYTES, NODE_BYTES = 32, 20
TIME_CHARS, KEY_CHARS = 12, 32  # of a body's key
PAGE_MESSAGES = 8
WORTH_DEFLATING = 96
SPACE = " \t\n\r"

_insert = insert_into(bodies, or_ignore=True)
_segments = Prepared(
    sa.select(bodies.c.segments).where(bodies.c.tenant == sa.bindparam("tenant"), bodies.c.hash == sa.bindparam("hash"))
)
_space = re.compile(r"[ \t\n\r]*")
_decoder = json.JSONDecoder()
_scan_once: Callable[[str, int], tuple[object, int]] = _decoder.scan_once  # type: ignore[attr-defined]  # raw_decode without its frame


class Segment(NamedTuple):
    """A stretch of a body. `kind` is "messages", "tools" or "attachment" for what may be shared, else empty."""

    data: bytes
    kind: str = ""


COMMA = Segment(b",")


@dataclass(frozen=True, slots=True)
class Body:
    """A body to be stored, from `at` (seconds since the epoch). `nodes` is the branch that its messages are, one
    for each, or empty; `reply` the message that it gives, if it is a reply."""

    at: float
    raw: bytes
    segments: Sequence[Segment]
    nodes: Sequence[Node] = ()
    reply: Node | None = None


def put_bodies(conn: sa.Connection, tenant: str, new: Sequence[Body], memo: Memo) -> list[str]:
    """Store bodies; their keys, in order. The nodes are stored, and `memo` knows how they are spelled.

    A key is the time in milliseconds and eighty bits of the SHA-256: bodies that come together lie together in
    the index.
    """
    rows: list[dict[str, object]] = []
    groups: dict[str, bytes] = {}
    for body in new:
        encoded, shared = _encode(body, memo)
        groups.update(shared)
        time = int(body.at * 1000) % 16**TIME_CHARS
        key = f"{time:012x}" + hashlib.sha256(body.raw).hexdigest()[TIME_CHARS:KEY_CHARS]
        rows.append({"tenant": tenant, "hash": key, "size_bytes": len(body.raw), "segments": encoded})
    put_hashed(conn, tenant, groups, memo.blobs)
    _insert.many(conn, rows)
    return [str(row["hash"]) for row in rows]


def get_body(conn: sa.Connection, tenant: str, body_key: str) -> bytes:
    """The body as it was put, byte for byte.

    Raises:
        StoreError: it is not there, or what is restored does not have this hash.
    """
    row = _segments.first(conn, tenant=tenant, hash=body_key)
    if row is None:
        raise StoreError(f"Body {body_key[:12]} is not in the store.", "", "nightschool doctor")
    parts: list[bytes | str] = []  # literals, and hashes of blobs
    todo = _decode(row.segments)[::-1]
    while todo:
        code, data = todo.pop()
        if code == PAGE:
            todo += _decode(get_blob(conn, tenant, data.hex()))[::-1]
        elif code == BRANCH:
            parts.append(_restore_branch(conn, tenant, data))
        elif code == REPLY:
            parts.append(inflate(data[NODE_BYTES:], REPLIES + load_content(conn, tenant, data[:NODE_BYTES].hex())))
        else:
            parts.append(data.hex() if code == REFERENCE else data)
    shared = get_blobs(conn, tenant, [part for part in parts if isinstance(part, str)])
    raw = b"".join(shared[part] if isinstance(part, str) else part for part in parts)
    if hashlib.sha256(raw).hexdigest()[TIME_CHARS : len(body_key)] != body_key[TIME_CHARS:]:
        raise StoreError(f"Body {body_key[:12]} cannot be restored.", "The store is damaged.", "nightschool doctor")
    return raw


def body_references(conn: sa.Connection, tenant: str, segments: bytes) -> tuple[set[str], set[str]]:
    """The hashes of the blobs, and of the leaves of branches, that a stored body is restored from.

    Raises:
        StoreError: a page is not there.
    """
    found: set[str] = set()
    leaves: set[str] = set()
    todo = _decode(segments)
    while todo:
        code, data = todo.pop()
        if code in (BRANCH, REPLY):
            leaves.add(data[:NODE_BYTES].hex())
        elif code in (REFERENCE, PAGE) and data.hex() not in found:
            found.add(data.hex())
            todo += _decode(get_blob(conn, tenant, data.hex())) if code == PAGE else []
    return found, leaves


def scan(raw: bytes) -> list[Segment]:
    """Cut a body into segments; joined they are `raw`.

    Linear: the values are skipped by the JSON decoder, in C. Reading stops without complaint at the first
    thing that is not JSON, for a cut need not be right to be restored, only to be shared.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return [Segment(raw)]
    spans: list[tuple[int, int, str]] = []
    with suppress(ValueError, IndexError, RecursionError, StopIteration):
        _find_spans(text, spans)
    segments: list[Segment] = []
    done = 0
    part = _slicer(raw, text)
    for start, end, kind in spans:
        between = part(done, start)
        segments.append(COMMA if between == b"," else Segment(between))
        if end - start < MIN_CHARS // 4:  # of UTF-8 no more than four bytes are one character
            segments.append(Segment(part(start, end), kind))
        else:
            segments += cut(part(start, end), kind)
        done = end
    segments.append(Segment(part(done, None)))
    return segments


def _slicer(raw: bytes, text: str) -> Callable[[int, int | None], bytes]:
    """Takes the bytes from one character of `text`, which is `raw`, to another."""
    if raw.isascii():
        return lambda start, end: raw[start:end]
    return lambda start, end: text[start:end].encode()


def cut(raw: bytes, kind: str = "") -> list[Segment]:
    """`raw` as one segment; where it holds images or files, these apart and what is between them."""
    if len(raw) < MIN_CHARS:
        return [Segment(raw, kind)]
    segments: list[Segment] = []
    done = 0
    for run in RUN.finditer(raw):
        segments += (Segment(raw[done : run.start()]), Segment(run[0], ATTACHMENT))
        done = run.end()
    return [*segments, Segment(raw[done:], "" if segments else kind)]


def _find_spans(text: str, spans: list[tuple[int, int, str]]) -> None:
    """Append (start, end, kind) of the values worth sharing in a JSON object."""
    at = _enter(text, _skip(text, 0), "{")
    while text[at] != "}":
        key, at = _decoder.raw_decode(text, at)
        at = _enter(text, _skip(text, at), ":")
        if key in MESSAGE_KEYS and text[at] == "[":
            at = _skip(text, at + 1)
            while text[at] != "]":
                _, end = _scan_once(text, at)
                spans.append((at, end, MESSAGE))
                # the usual comma without a call: this is the loop over everything that is resent
                at = end + 1 if text.startswith(",{", end) else _next(text, end, "]")
            end = at + 1
        else:
            _, end = _decoder.raw_decode(text, at)
            if key == TOOLS:
                spans.append((at, end, TOOLS))
        at = _next(text, end, "}")


def _skip(text: str, at: int) -> int:
    if text[at : at + 1] not in SPACE:
        return at
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


def _encode(body: Body, memo: Memo) -> tuple[bytes, dict[str, bytes]]:
    """The bytes that stand for a body, and the blobs they refer to, by hash."""
    shared: dict[str, bytes] = {}
    told = body.reply if len(body.raw) >= WORTH_DEFLATING and len(body.segments) == 1 else None
    # only of what the store keeps of the message can the body be made again
    if told is not None and memo.variant((told.hash, told.kept)) == 0:
        return _told_by_message(body.raw, told), shared
    places = [at for at, segment in enumerate(body.segments) if segment.kind == MESSAGE]
    branch = _refer_to_branch(body, places, memo)
    if branch is None:
        return _encode_pages(body.segments, shared), shared
    before, behind = body.segments[: places[0]], body.segments[places[-1] + 1 :]
    encoded = [_one(segment, shared) for segment in before], [branch], [_one(segment, shared) for segment in behind]
    return b"".join(part for some in encoded for part in some), shared


def _refer_to_branch(body: Body, places: Sequence[int], memo: Memo) -> bytes | None:
    """What stands for all messages and what is between them; `None` where they are not a branch's."""
    if not places or len(places) != len(body.nodes) or places[-1] - places[0] != 2 * len(places) - 2:
        return None
    separators = {body.segments[at].data for at in range(places[0] + 1, places[-1], 2)} or {b""}
    found = [memo.variant((node.hash, node.spelling or b"")) for node in body.nodes]
    numbers = [number for number in found if number is not None]
    separator = separators.pop()
    if separators or len(separator) > 255 or len(numbers) < len(found):
        return None
    packed = bytes(numbers).rstrip(b"\0")
    leaf = bytes.fromhex(body.nodes[-1].hash)
    return b"".join((bytes([BRANCH]), leaf, bytes([len(separator)]), separator, struct.pack("<I", len(packed)), packed))


def _told_by_message(raw: bytes, reply: Node) -> bytes:
    packed = deflate(raw, REPLIES + reply.kept)
    return Ready(b"".join((bytes([REPLY]), struct.pack("<I", len(packed)), bytes.fromhex(reply.hash), packed)))


def _restore_branch(conn: sa.Connection, tenant: str, data: bytes) -> bytes:
    begin = NODE_BYTES + 1
    separator = data[begin : begin + data[NODE_BYTES]]
    numbers = data[begin + len(separator) + 4 :]
    return separator.join(load_spelled(conn, tenant, data[:NODE_BYTES].hex(), numbers))


def _encode_pages(segments: Sequence[Segment], shared: dict[str, bytes]) -> bytes:
    head: list[bytes] = []
    run: list[bytes] = []  # from the first message on
    num_messages = 0
    for segment in segments:
        if segment.kind == MESSAGE and num_messages == 0:
            head, run = run, []
        run.append(_one(segment, shared))
        num_messages += segment.kind == MESSAGE
        if segment.kind == MESSAGE and num_messages % PAGE_MESSAGES == 0:
            run = [_refer(PAGE, b"".join(run), shared)]
    return b"".join(head + run)


def _one(segment: Segment, shared: dict[str, bytes]) -> bytes:
    worth_it = segment.kind and len(segment.data) >= WORTH_SHARING
    return _refer(REFERENCE, segment.data, shared) if worth_it else _literal(segment.data)


def _refer(code: int, data: bytes, shared: dict[str, bytes]) -> bytes:
    digest = hashlib.sha256(data)
    shared[digest.hexdigest()] = data
    return bytes([code]) + digest.digest()


def _literal(data: bytes) -> bytes:
    return bytes([LITERAL]) + struct.pack("<I", len(data)) + data if data else b""


def _decode(data: bytes) -> list[tuple[int, bytes]]:
    """(code, literal bytes, digest, branch, or message and what it does not say) in order."""
    parts: list[tuple[int, bytes]] = []
    at = 0
    while at < len(data):
        start, length = at + 1, DIGEST_BYTES
        if data[at] == LITERAL:
            start, length = at + 5, struct.unpack_from("<I", data, at + 1)[0]
        elif data[at] == BRANCH:
            length = NODE_BYTES + 1 + data[start + NODE_BYTES]
            length += 4 + struct.unpack_from("<I", data, start + length)[0]
        elif data[at] == REPLY:
            start, length = at + 5, NODE_BYTES + struct.unpack_from("<I", data, at + 1)[0]
        parts.append((data[at], data[start : start + length]))
        at = start + length
    return parts
