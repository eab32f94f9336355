"""What the last exchanges said, kept so that what is resent is neither hashed nor looked up again.

It belongs to one connection, the writer's. Everything in it says that something is stored, so it is dropped as
soon as that may have changed: after a rollback (`forget`), and when anybody else has written (`recall`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

KEY = "nightschool.memo"
MAX_ENTRIES = 4096  # of one generation, as the next
MAX_BYTES = 8 * 2**20
MAX_TOOLS = 64

Key = tuple[str, bytes]


@dataclass(slots=True)
class Generation:
    """`nodes`: by parent and spelling. `variants`: how a stored node is spelled, by its hash and that spelling."""

    nodes: dict[Key, Any] = field(default_factory=dict)
    variants: dict[Key, int] = field(default_factory=dict)
    num_bytes: int = 0


@dataclass(slots=True)
class Memo:
    """Two generations: what is found in the old one lives on in the young one, and when that is full the old one is
    dropped. So a conversation that goes on stays known, and memory bounded.

    `blobs`: hashes of stored blobs. `tools`: by spelling.
    """

    young: Generation = field(default_factory=Generation)
    old: Generation = field(default_factory=Generation)
    blobs: set[str] = field(default_factory=set)
    tools: dict[bytes, tuple[Any, str]] = field(default_factory=dict)
    stamp: tuple[int, int] | None = None
    tenant: str | None = None

    def clear(self) -> None:
        self.young, self.old = Generation(), Generation()
        self.blobs.clear()
        self.tools.clear()

    def node(self, key: Key) -> Any:
        """The node below a parent with this spelling, `None` where none is known."""
        found = self.young.nodes.get(key)
        if found is None and (found := self.old.nodes.get(key)) is not None:
            self.keep_node(key, found)
        return found

    def keep_node(self, key: Key, node: Any) -> None:
        young = self.young
        if len(young.nodes) >= MAX_ENTRIES or young.num_bytes > MAX_BYTES:
            self.old, self.young = young, Generation()
            self.blobs.clear()
            young = self.young
        young.nodes[key] = node
        young.num_bytes += 4 * len(key[1])  # the spelling, the content, and what was read from it

    def variant(self, key: Key) -> int | None:
        """Which spelling of a stored node this is, `None` where that is not known."""
        found = self.young.variants.get(key)
        if found is None and (found := self.old.variants.get(key)) is not None:
            self.young.variants[key] = found
        return found

    def keep_variant(self, key: Key, number: int) -> None:
        self.young.variants[key] = number

    def keep_tools(self, spelling: bytes, value: tuple[Any, str]) -> None:
        if len(self.tools) >= MAX_TOOLS:
            self.tools.clear()
        self.tools[spelling] = value


def recall(conn: sa.Connection, tenant: str) -> Memo:
    """The connection's memo of a tenant, empty if anything was written since `remember` but by `remember`'s caller.

    What one tenant has stored another has not: a memo is never of two.
    """
    memo: Memo = conn.info.setdefault(KEY, Memo())
    if memo.tenant != tenant or memo.stamp is None or memo.stamp != _stamp(conn):
        memo.clear()
    memo.tenant, memo.stamp = tenant, None
    return memo


def remember(conn: sa.Connection, memo: Memo) -> None:
    """What was written up to here is what the memo knows."""
    memo.stamp = _stamp(conn)


def forget(conn: sa.Connection) -> None:
    """After a rollback: what the memo knows may not be stored."""
    conn.info.pop(KEY, None)


def _stamp(conn: sa.Connection) -> tuple[int, int] | None:
    """Changes by others and by this connection; `None` where the database does not tell."""
    if conn.dialect.name != "sqlite":
        return None
    raw: Any = conn.connection.dbapi_connection
    return raw.execute("PRAGMA data_version").fetchone()[0], raw.total_changes
