"""The message tree: each message once, under a hash of tenant, parent and exact content (law 4).

A hash begins with its stem, four bytes that all messages of a conversation below its system messages share, so
that a conversation lies together in every index however large the store is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from nightschool.errors import StoreError
from nightschool.store.blobs import in_parts, put_hashed
from nightschool.store.matching import match_key, ordered_json, sorted_json
from nightschool.store.memo import Memo
from nightschool.store.prepared import Lookup, insert_into
from nightschool.store.schema import blobs, spellings
from nightschool.store.schema import messages as table
from nightschool.types import Json

STEM_CHARS, HASH_CHARS = 8, 40  # in hex
NO_STEM = "0" * STEM_CHARS  # of messages that many conversations begin with
SHARED_ROLES = ("system", "developer")
INLINE_BYTES = 1024  # longer content is a blob, which equal messages elsewhere share
MAX_VARIANTS = 8

_known = Lookup(table.c.hash, (table.c.hash, table.c.content, table.c.blob_hash))
_spelled = Lookup(spellings.c.message_hash, (spellings.c.message_hash, spellings.c.variant, spellings.c.data))
_insert = insert_into(table)
_insert_spelling = insert_into(spellings)


class Node(NamedTuple):
    """A message at its place in the tree; `kept` is the JSON that the store keeps if it is new, `key` what matching
    compares.

    `dialogue` is the match hash without the system messages that stand before the dialogue, `None` for these.
    `message` is what all this was read from. `spelling` is how a request body spells it, `None` where none does; it
    is what is kept if it reads the same.
    """

    hash: str
    parent_hash: str | None
    depth: int
    match_hash: str
    role: str
    kept: bytes
    key: bytes = b""
    dialogue: str | None = None
    message: Json | None = None
    spelling: bytes | None = None


def canonical(value: object) -> bytes:
    """JSON with sorted keys and no spaces. A key that is null, absent or empty stays three things."""
    return sorted_json(value)


def well_formed(text: str) -> str:
    """Text that every database accepts: what JSON can spell and they cannot take becomes a question mark."""
    return text.encode("utf-8", "replace").decode().replace("\0", "?")


def rolling_match(previous: str | None, key: bytes) -> str:
    """The match hash of a branch that ends in the message with this match key, from the one before it.

    Two branches with equal match hashes are the same conversation to a client that re-serializes. Its stem is
    that of the first message.
    """
    digest = hashlib.sha256((previous or "").encode() + key).hexdigest()
    return (digest if previous is None else previous)[:STEM_CHARS] + digest[STEM_CHARS:HASH_CHARS]


def grow(
    tenant: str,
    messages: Sequence[Json],
    parent: Node | None = None,
    spelled: Sequence[bytes] = (),
    memo: Memo | None = None,
) -> list[Node]:
    """The nodes of `messages` below `parent`, root first. Touches no database.

    `spelled` are the bytes of the first messages in a request body, in order. `memo` saves hashing again what
    was hashed before; a message that no body spelled it expects as it is kept.
    """
    nodes: list[Node] = []
    for at, message in enumerate(messages):
        spelling = spelled[at] if at < len(spelled) else None
        above = parent.hash if parent else tenant
        if memo is None or spelling is None:
            node = _node(tenant, message, parent, spelling)
            if memo is not None:
                memo.keep_node((above, node.kept), Node(*node[:-1], spelling=node.kept))
        else:
            key = (above, spelling)
            known = memo.node(key)
            if known is None or known.message != message:
                known = _node(tenant, message, parent, spelling)
                memo.keep_node(key, known)
            node = known
        nodes.append(node)
        parent = node
    return nodes


def put_nodes(conn: sa.Connection, tenant: str, nodes: Iterable[Node], memo: Memo | None = None) -> Memo:
    """Store what is not stored yet of nodes and of their spellings; a parent is stored, or among them.

    The memo that comes back knows for each node with a spelling which variant of it that is, unless there are
    too many.
    """
    memo = memo or Memo()
    wanted: dict[str, dict[bytes | None, Node]] = {}
    for node in nodes:
        if node.spelling is None or memo.variant((node.hash, node.spelling)) is None:
            wanted.setdefault(node.hash, {})[node.spelling] = node
    stored = {row.hash: row for row in _known.rows(conn, tenant, list(wanted))}
    new: list[Node] = []
    others: dict[str, list[bytes]] = {}  # spellings that are not the kept one
    for node_hash, spelled in wanted.items():
        row = stored.get(node_hash)
        if row is None:
            first = next(iter(spelled.values()))
            first = next((node for node in spelled.values() if node.spelling == node.kept), first)
            new.append(first)
            kept = first.kept
            blob_hash = None
            memo.keep_variant((node_hash, kept), 0)
        else:
            kept, blob_hash = row.content, row.blob_hash
        for spelling in spelled:
            if spelling is None:
                continue
            if spelling == kept or (kept is None and hashlib.sha256(spelling).hexdigest() == blob_hash):
                memo.keep_variant((node_hash, spelling), 0)
            else:
                others.setdefault(node_hash, []).append(spelling)
    _put_new(conn, tenant, new, memo)
    if others:
        _put_spellings(conn, tenant, others, memo)
    return memo


def put_messages(conn: sa.Connection, tenant: str, messages: Sequence[Json], parent_hash: str | None = None) -> str:
    """Store `messages` below `parent_hash` (`None`: from the root); the hash of the last.

    Raises:
        ValueError: there are no messages.
        StoreError: the parent is not stored.
    """
    parent = None if parent_hash is None else _load_node(conn, tenant, parent_hash)
    nodes = grow(tenant, messages, parent)
    if not nodes:
        raise ValueError("a branch has at least one message")
    put_nodes(conn, tenant, nodes)
    return nodes[-1].hash


def load_branch(conn: sa.Connection, tenant: str, leaf_hash: str) -> tuple[Json, ...]:
    """The messages from the root to `leaf_hash`. Raises StoreError when it is not stored."""
    return tuple(json.loads(data) for _, data in _branch(conn, tenant, leaf_hash))


def load_branches(conn: sa.Connection, tenant: str, leaf_hashes: Iterable[str]) -> dict[str, tuple[Json, ...]]:
    """The messages from the root to each leaf. What they share is read and parsed once.

    Raises:
        StoreError: a leaf, or a message above one, is not stored.
    """
    leaves = list(dict.fromkeys(leaf_hashes))
    found: dict[str, tuple[str | None, Json]] = {}
    data, blob = with_content()
    for some in in_parts(leaves):
        link = sa.select(table.c.hash, table.c.parent_hash)
        tree = link.where(table.c.tenant == tenant, table.c.hash.in_(some)).cte("tree", recursive=True)
        tree = tree.union(link.where(table.c.tenant == tenant, table.c.hash == tree.c.parent_hash))
        here = sa.and_(table.c.tenant == tenant, table.c.hash == tree.c.hash)
        query = sa.select(table.c.hash, table.c.parent_hash, data).select_from(tree.join(table, here))
        for row in conn.execute(query.outerjoin(blobs, blob)):
            if row.hash not in found and row.data is not None:
                found[row.hash] = row.parent_hash, json.loads(row.data)
    return {leaf: _walked(found, leaf) for leaf in leaves}


def _walked(found: dict[str, tuple[str | None, Json]], leaf: str) -> tuple[Json, ...]:
    branch: list[Json] = []
    at: str | None = leaf
    while at is not None:
        if at not in found:
            raise _unknown(at)
        at, message = found[at]
        branch.append(message)
    return tuple(reversed(branch))


def load_spelled(conn: sa.Connection, tenant: str, leaf_hash: str, variants: bytes) -> list[bytes]:
    """The messages from the root to `leaf_hash` as a body spelled them; a missing number of a variant is 0.

    Raises:
        StoreError: one of them is not stored.
    """
    branch = _branch(conn, tenant, leaf_hash)
    numbers = variants.ljust(len(branch), b"\0")
    asked = [node_hash for (node_hash, _), number in zip(branch, numbers, strict=True) if number]
    others = {(row.message_hash, row.variant): row.data for row in _spelled.rows(conn, tenant, asked)}
    try:
        return [
            others[node_hash, number] if number else data
            for (node_hash, data), number in zip(branch, numbers, strict=True)
        ]
    except KeyError as error:
        raise _unknown(error.args[0][0]) from error


def load_content(conn: sa.Connection, tenant: str, node_hash: str) -> bytes:
    """What the store keeps of one message. Raises StoreError when it is not stored."""
    data, blob = with_content()
    query = sa.select(data).select_from(table.outerjoin(blobs, blob))
    found = conn.scalar(query.where(table.c.tenant == tenant, table.c.hash == node_hash))
    if found is None:
        raise _unknown(node_hash)
    return found


def with_content(
    tenant: sa.ColumnElement[Any] | str = table.c.tenant,
) -> tuple[sa.ColumnElement[bytes], sa.ColumnElement[bool]]:
    """What a query reads of a message's content, and the condition under which it outer-joins `blobs`."""
    blob = sa.and_(blobs.c.tenant == tenant, blobs.c.hash == table.c.blob_hash)
    return sa.func.coalesce(table.c.content, blobs.c.data).label("data"), blob


def _branch(conn: sa.Connection, tenant: str, leaf_hash: str) -> list[tuple[str, bytes]]:
    """Hash and content from the root down."""
    data, blob = with_content()
    link = sa.select(table.c.hash, table.c.parent_hash, table.c.depth)
    branch = link.where(table.c.tenant == tenant, table.c.hash == leaf_hash).cte("branch", recursive=True)
    branch = branch.union_all(link.where(table.c.tenant == tenant, table.c.hash == branch.c.parent_hash))
    here = sa.and_(table.c.tenant == tenant, table.c.hash == branch.c.hash)
    query = sa.select(table.c.hash, data).select_from(branch.join(table, here).outerjoin(blobs, blob))
    rows = conn.execute(query.order_by(branch.c.depth)).all()
    if not rows or any(row.data is None for row in rows):
        raise _unknown(leaf_hash)
    return [(row.hash, row.data) for row in rows]


def _chained(previous: str | None, data: bytes, role: object) -> str:
    """The hash of `data`, with the stem of `previous`, or a new one where a conversation parts from the shared."""
    digest = hashlib.sha256(data).hexdigest()
    stem = NO_STEM if previous is None else previous[:STEM_CHARS]
    if stem == NO_STEM and role not in SHARED_ROLES:
        stem = digest[:STEM_CHARS]
    return stem + digest[STEM_CHARS:HASH_CHARS]


def _node(tenant: str, message: Json, parent: Node | None, spelling: bytes | None) -> Node:
    content, kept, key = canonical(message), ordered_json(message), match_key(message)
    if spelling is not None and spelling != kept and _reads_as(spelling, content):
        kept = spelling
    role = message.get("role")
    above, before = (parent.hash, parent.dialogue) if parent else (None, None)
    return Node(
        hash=_chained(above, b"\0".join([tenant.encode(), (above or "root").encode(), content]), role),
        parent_hash=above,
        depth=parent.depth + 1 if parent else 0,
        match_hash=rolling_match(parent.match_hash if parent else None, key),
        role=well_formed(role) if isinstance(role, str) else "",
        kept=kept,
        key=key,
        dialogue=None if before is None and role in SHARED_ROLES else rolling_match(before, key),
        message=message,
        spelling=spelling,
    )


def _put_new(conn: sa.Connection, tenant: str, new: Sequence[Node], memo: Memo) -> None:
    rows: list[dict[str, Any]] = []
    long: dict[str, bytes] = {}
    for node in new:
        kept = node.kept
        blob_hash = hashlib.sha256(kept).hexdigest() if len(kept) > INLINE_BYTES else None
        if blob_hash is not None:
            long[blob_hash] = kept
        row = {
            "tenant": tenant,
            "hash": node.hash,
            "parent_hash": node.parent_hash,
            "depth": node.depth,
            "role": node.role,
            "match_hash": node.match_hash,
            "content": None if blob_hash else kept,
            "blob_hash": blob_hash,
        }
        rows.append(row)
    put_hashed(conn, tenant, long, memo.blobs)
    _insert.many(conn, rows)


def _put_spellings(conn: sa.Connection, tenant: str, others: dict[str, list[bytes]], memo: Memo) -> None:
    numbers: dict[str, int] = {}
    for row in _spelled.rows(conn, tenant, list(others)):
        memo.keep_variant((row.message_hash, row.data), row.variant)
        numbers[row.message_hash] = max(row.variant, numbers.get(row.message_hash, 0))
    rows: list[dict[str, Any]] = []
    for node_hash, spelled in others.items():
        for data in spelled:
            number = numbers.get(node_hash, 0) + 1
            if memo.variant((node_hash, data)) is not None or number > MAX_VARIANTS:
                continue
            numbers[node_hash] = number
            memo.keep_variant((node_hash, data), number)
            rows.append({"tenant": tenant, "message_hash": node_hash, "variant": number, "data": data})
    _insert_spelling.many(conn, rows)


def _load_node(conn: sa.Connection, tenant: str, node_hash: str) -> Node:
    columns = (table.c.hash, table.c.parent_hash, table.c.depth, table.c.match_hash, table.c.role)
    row = conn.execute(sa.select(*columns).where(table.c.tenant == tenant, table.c.hash == node_hash)).first()
    if row is None:
        raise _unknown(node_hash)
    return Node(*row, kept=b"")


def _reads_as(raw: bytes, content: bytes) -> bool:
    try:
        return canonical(json.loads(raw)) == content
    except (ValueError, RecursionError):
        return False


def _unknown(node_hash: str) -> StoreError:
    return StoreError(f"Message {node_hash[:12]} is not in the store.", "", "nightschool doctor")
