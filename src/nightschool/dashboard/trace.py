"""A session's messages as a tree: nodes, branches, and the order in which a page draws them. Pure.

Messages that are the same after a client re-serialized them share a node (their rolled match hash is equal),
so a reply and its return in the next request's history are one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Node:
    """One message; `message` is its hash. `replies` are the (exchange id, choice index) whose reply it is;
    `unanswered` the exchanges that ended here without a reply."""

    key: str
    parent: str | None
    role: str
    depth: int
    message: str
    replies: list[tuple[str, int]] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)
    children: list[str] = field(default_factory=list)
    first_at: float = float("inf")
    reach: tuple[int, float] = (0, 0.0)  # depth and time of the deepest leaf below

    def exchanges(self) -> list[str]:
        """Every exchange that ended at this message, with a reply or without one."""
        return [exchange_id for exchange_id, _ in self.replies] + self.unanswered


@dataclass(frozen=True, slots=True)
class Line:
    """One drawn row of the tree. `level` grows where a side branch leaves the main one."""

    node: Node
    level: int
    side: bool


@dataclass(frozen=True, slots=True)
class MessageRow:
    hash: str
    parent_hash: str | None
    match_hash: str
    role: str
    depth: int


@dataclass(frozen=True, slots=True)
class Leaf:
    """Where an exchange ends: its reply's message, or the last message of its request without one."""

    hash: str
    exchange_id: str
    choice: int | None
    started_at: float


class Tree:
    """The nodes of one session. Roots are more than one where side requests have other first messages."""

    def __init__(self, rows: Iterable[MessageRow], leaves: Iterable[Leaf]) -> None:
        by_hash = {row.hash: row for row in rows}
        self.nodes: dict[str, Node] = {}
        for row in sorted(by_hash.values(), key=lambda row: row.depth):
            parent = by_hash.get(row.parent_hash) if row.parent_hash else None
            self.nodes.setdefault(
                row.match_hash,
                Node(row.match_hash, parent.match_hash if parent else None, row.role, row.depth, row.hash),
            )
        self.leaves = [leaf for leaf in leaves if leaf.hash in by_hash]
        for leaf in self.leaves:
            node = self.nodes[by_hash[leaf.hash].match_hash]
            if leaf.choice is None:
                node.unanswered.append(leaf.exchange_id)
            else:
                node.replies.append((leaf.exchange_id, leaf.choice))
            node.first_at = min(node.first_at, leaf.started_at)
            node.reach = max(node.reach, (node.depth, leaf.started_at))
        for node in sorted(self.nodes.values(), key=lambda node: -node.depth):
            if node.parent is not None:
                above = self.nodes[node.parent]
                above.first_at = min(above.first_at, node.first_at)
                above.reach = max(above.reach, node.reach)
        for node in sorted(self.nodes.values(), key=lambda node: (node.first_at, node.depth)):
            if node.parent is not None:
                self.nodes[node.parent].children.append(node.key)
        self.roots = sorted(
            (node for node in self.nodes.values() if node.parent is None), key=lambda node: (node.first_at, node.key)
        )

    def ends(self) -> list[str]:
        """Keys of the leaves, the main branch's first, then by time."""
        main = self.main_end()
        ends = [node for node in self.nodes.values() if not node.children]
        return [node.key for node in sorted(ends, key=lambda node: (node.key != main, node.first_at, node.key))]

    def main_end(self) -> str | None:
        """The deepest leaf; among equals the latest."""
        ends = [node for node in self.nodes.values() if not node.children]
        return max(ends, key=lambda node: node.reach).key if ends else None

    def branch(self, end: str) -> list[Node]:
        """Root to `end`."""
        return list(reversed(self._upward(end)))

    def end_through(self, exchange_id: str) -> str | None:
        """The end of the branch that holds the exchange's end, following main children below it."""
        holding = [node for node in self.nodes.values() if exchange_id in node.exchanges()]
        if not holding:
            return None
        node = holding[0]
        while node.children:
            node = self.nodes[self._main_child(node)]
        return node.key

    def lines(self) -> list[Line]:
        """Depth first, without recursion: side branches under their fork, then the main one goes on."""
        drawn: list[Line] = []
        stack = [(root.key, 0, False) for root in reversed(self.roots)]
        while stack:
            key, level, side = stack.pop()
            node = self.nodes[key]
            drawn.append(Line(node, level, side))
            if node.children:
                main = self._main_child(node)
                stack.append((main, level, side))
                stack += [(child, level + 1, True) for child in reversed(node.children) if child != main]
        return drawn

    def _main_child(self, node: Node) -> str:
        return max(node.children, key=lambda key: self.nodes[key].reach)

    def _upward(self, key: str | None) -> list[Node]:
        path: list[Node] = []
        while key is not None:
            node = self.nodes[key]
            path.append(node)
            key = node.parent
        return path
