"""The message tree: each message once, under a hash of tenant, parent and exact content (law 4)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from nightschool.errors import StoreError
from nightschool.store.blobs import get_blobs, put_blobs, stored
from nightschool.store.matching import match_key
from nightschool.store.schema import messages as table
from nightschool.types import Json

NUM_RECENT = 8  # levels from the leaf up that are looked at before the rest: usually two are new

_encoder = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Node:
    """A message at its place in the tree; `content` is its canonical JSON, `key` what matching compares."""

    hash: str
    parent_hash: str | None
    depth: int
    match_hash: str
    role: str
    content: bytes
    key: bytes = b""


def canonical(value: object) -> bytes:
    """JSON with sorted keys and no spaces. A key that is null, absent or empty stays three things."""
    return _encoder.encode(value).encode()


def well_formed(text: str) -> str:
    """Text that a database accepts: a lone surrogate, which JSON can spell, becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


def rolling_match(previous: str | None, key: bytes) -> str:
    """The match hash of a branch that ends in the message with this match key, from the one before it.

    Two branches with equal match hashes are the same conversation to a client that re-serializes.
    """
    return hashlib.sha256((previous or "").encode() + key).hexdigest()


def grow(tenant: str, messages: Sequence[Json], parent: Node | None = None) -> list[Node]:
    """The nodes of `messages` below `parent`, root first. Touches no database."""
    nodes: list[Node] = []
    for message in messages:
        content, key = canonical(message), match_key(message)
        role = message.get("role")
        above = (parent.hash if parent else "root").encode()
        parent = Node(
            hash=hashlib.sha256(b"\0".join([tenant.encode(), above, content])).hexdigest(),
            parent_hash=parent.hash if parent else None,
            depth=parent.depth + 1 if parent else 0,
            match_hash=rolling_match(parent.match_hash if parent else None, key),
            role=well_formed(role) if isinstance(role, str) else "",
            content=content,
            key=key,
        )
        nodes.append(parent)
    return nodes


def put_nodes(conn: sa.Connection, tenant: str, nodes: Sequence[Node], spellings: Sequence[bytes] = ()) -> None:
    """Store the nodes that are not stored yet: one branch, root first, and perhaps several replies to its leaf.

    `spellings` are the bytes of the first messages in a request body, in order; where one reads as its node's
    content it becomes the blob, so that the body's reference and the tree share it.
    """
    known = _known(conn, tenant, nodes)
    raws = dict(zip((node.hash for node in nodes), spellings, strict=False))  # as far as both go
    new = {node.hash: node for node in nodes if node.hash not in known}
    if not new:
        return
    hashes = put_blobs(conn, tenant, [_spelling(node, raws.get(node.hash)) for node in new.values()])
    rows = [
        {
            "tenant": tenant,
            "hash": node.hash,
            "parent_hash": node.parent_hash,
            "depth": node.depth,
            "role": node.role,
            "blob_hash": blob_hash,
            "match_hash": node.match_hash,
        }
        for node, blob_hash in zip(new.values(), hashes, strict=True)
    ]
    conn.execute(sa.insert(table), rows)


def put_messages(conn: sa.Connection, tenant: str, messages: Sequence[Json], parent_hash: str | None = None) -> str:
    """Store `messages` below `parent_hash` (`None`: from the root); the hash of the last.

    Raises:
        ValueError: there are no messages.
        StoreError: the parent is not stored.
    """
    parent = None if parent_hash is None else _node(conn, tenant, parent_hash)
    nodes = grow(tenant, messages, parent)
    if not nodes:
        raise ValueError("a branch has at least one message")
    put_nodes(conn, tenant, nodes)
    return nodes[-1].hash


def load_branch(conn: sa.Connection, tenant: str, leaf_hash: str) -> tuple[Json, ...]:
    """The messages from the root to `leaf_hash`. Raises StoreError when it is not stored."""
    leaf = sa.select(table.c.parent_hash, table.c.depth, table.c.blob_hash)
    branch = leaf.where(table.c.tenant == tenant, table.c.hash == leaf_hash).cte("branch", recursive=True)
    above = leaf.where(table.c.tenant == tenant, table.c.hash == branch.c.parent_hash)
    branch = branch.union_all(above)
    hashes = list(conn.scalars(sa.select(branch.c.blob_hash).order_by(branch.c.depth)))
    if not hashes:
        raise _unknown(leaf_hash)
    blobs = get_blobs(conn, tenant, hashes)
    return tuple(json.loads(blobs[h]) for h in hashes)


def _node(conn: sa.Connection, tenant: str, node_hash: str) -> Node:
    columns = (table.c.hash, table.c.parent_hash, table.c.depth, table.c.match_hash, table.c.role)
    row = conn.execute(sa.select(*columns).where(table.c.tenant == tenant, table.c.hash == node_hash)).first()
    if row is None:
        raise _unknown(node_hash)
    return Node(*row, content=b"")


def _known(conn: sa.Connection, tenant: str, nodes: Sequence[Node]) -> set[str]:
    """The hashes of `nodes` that are stored. One branch: above a stored node everything is stored."""
    recent = [node for node in nodes if node.depth > nodes[-1].depth - NUM_RECENT]
    found = stored(conn, table.c.hash, tenant, [node.hash for node in recent])
    if not found:
        return stored(conn, table.c.hash, tenant, [node.hash for node in nodes])
    depth = max(node.depth for node in recent if node.hash in found)
    return found.union(node.hash for node in nodes if node.depth < depth)


def _spelling(node: Node, raw: bytes | None) -> bytes:
    """`raw` where it reads as the node's content, else its canonical bytes."""
    try:
        return raw if raw is not None and canonical(json.loads(raw)) == node.content else node.content
    except (ValueError, RecursionError):
        return node.content


def _unknown(node_hash: str) -> StoreError:
    return StoreError(f"Message {node_hash[:12]} is not in the store.", "", "nightschool doctor")
