"""What the last exchanges said, kept so that what is resent is neither hashed nor looked up again.

It belongs to one connection, the writer's. Everything in it says that something is stored, so it is dropped as
soon as that may have changed: after a rollback (`forget`), and when anybody else has written (`recall`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

KEY = "nightschool.memo"
MAX_ENTRIES = 16384
MAX_BYTES = 24 * 2**20
MAX_TOOLS = 64


@dataclass(slots=True)
class Memo:
    """`nodes`: by parent and spelling. `variants`: how a stored node is
    spelled, by its hash and that spelling. `blobs`: hashes of stored blobs. `tools`: by spelling."""

    nodes: dict[tuple[str | None, bytes], Any] = field(default_factory=dict)
    variants: dict[tuple[str, bytes], int] = field(default_factory=dict)
    blobs: set[str] = field(default_factory=set)
    tools: dict[bytes, tuple[Any, str]] = field(default_factory=dict)
    stamp: tuple[int, int] | None = None
    tenant: str | None = None
    num_bytes: int = 0

    def clear(self) -> None:
        for kept in (self.nodes, self.variants, self.blobs, self.tools):
            kept.clear()
        self.num_bytes = 0

    def keep_node(self, key: tuple[str | None, bytes], node: Any) -> None:
        if len(self.nodes) >= MAX_ENTRIES or self.num_bytes > MAX_BYTES:
            self.clear()
        self.nodes[key] = node
        self.num_bytes += 4 * len(key[1])  # the spelling, the content, and what was read from it

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
