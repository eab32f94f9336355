"""Prefix forest: every unique prefix token goes through the model once (design law 7).

Sequences that begin alike (one system prompt, the turns of one session, a group of rollouts) form a trie.
A `Pack` holds some of its branches flattened in depth-first order: a parent always comes before its
children, a token attends to its ancestors and itself, and its position is its depth. One forward over a
pack with such attention and `position_ids` gives what one padded row per sequence would give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nightschool.errors import InputError
from nightschool.training.limits import TOKEN_BUDGET


@dataclass(frozen=True, slots=True)
class Pack:
    """One forward. Shapes: T nodes; `parents` is -1 at a root.

    `places[k][t]` is the node of token t of the sequence with index `rows[k]` in the caller's list.
    """

    token_ids: np.ndarray
    position_ids: np.ndarray
    parents: np.ndarray
    rows: tuple[int, ...]
    places: tuple[np.ndarray, ...]

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows that go through one forward together, in sorted order of their tokens, and how many nodes they have."""

    rows: tuple[int, ...]
    num_tokens: int


def pack(sequences: Sequence[Sequence[int]], token_budget: int = TOKEN_BUDGET) -> list[Pack]:
    """Flatten the prefix forest of `sequences` into packs of at most `token_budget` tokens.

    A tree that fits stays whole. A larger one is cut where its branches leave the trunk, the largest first into as few
    packs as they fit, and its trunk is repeated in each; so it is with a tree's branches as with the forest's trees,
    which share nothing. The result does not depend on the order of `sequences`, except for `rows`.

    Edge: a single sequence longer than the budget gets a pack of its own, with those that are its beginnings.
    """
    if any(not len(sequence) for sequence in sequences):
        raise InputError("A sequence has no tokens.", "Nothing can be predicted from it.", "Leave it out.")
    known = [tuple(sequence) for sequence in sequences]
    ordered = sorted(range(len(known)), key=known.__getitem__)
    place = {row: at for at, row in enumerate(ordered)}
    packs = []
    for part in _parts(known, ordered, token_budget):
        open_pack = _OpenPack()
        for row in sorted(part.rows, key=place.__getitem__):
            open_pack.add(row, known[row])
        packs.append(open_pack.close())
    return packs


def _parts(sequences: Sequence[tuple[int, ...]], ordered: Sequence[int], budget: int) -> list[_Part]:
    """From the leaves up: what shares a prefix is joined where that prefix ends.

    The stack holds the open nodes of the tree on the way to the newest row, as (depth, parts below it).
    """
    stack: list[tuple[int, list[_Part]]] = [(0, [])]
    before: tuple[int, ...] = ()
    for row in ordered:
        ids = sequences[row]
        _close(stack, _num_shared(before, ids), budget)
        stack.append((len(ids), [_Part((row,), len(ids))]))
        before = ids
    _close(stack, 0, budget)
    return _joined(stack[0][1], 0, budget)


def _close(stack: list[tuple[int, list[_Part]]], depth: int, budget: int) -> None:
    """Join the parts of all open nodes below `depth`, so that a node of that depth is the newest."""
    while stack[-1][0] > depth:
        below, parts = stack.pop()
        if stack[-1][0] < depth:
            stack.append((depth, []))
        stack[-1][1].extend(_joined(parts, below, budget))


def _joined(parts: list[_Part], trunk: int, budget: int) -> list[_Part]:
    """Parts that begin with the same `trunk` tokens in as few as fit the budget: first fit, the largest first.

    Edge: what adds no token, as a session's earlier turns do to its last, joins even a part beyond the budget.
    """
    bins: list[_Part] = []
    for part in sorted(parts, key=lambda part: -part.num_tokens):
        own = part.num_tokens - trunk
        at = next((i for i, one in enumerate(bins) if not own or one.num_tokens + own <= budget), None)
        if at is None:
            bins.append(part)
        else:
            bins[at] = _Part(bins[at].rows + part.rows, bins[at].num_tokens + own)
    return bins


class _OpenPack:
    """A pack being filled with branches in lexicographic order, so only the newest branch can be shared."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.position_ids: list[int] = []
        self.parents: list[int] = []
        self.rows: list[int] = []
        self.places: list[list[int]] = []
        self._newest: tuple[int, ...] = ()

    def add(self, row: int, ids: tuple[int, ...]) -> None:
        shared = _num_shared(self._newest, ids)
        self._newest = ids
        path = self.places[-1][:shared] if self.places else []
        for depth in range(shared, len(ids)):
            self.parents.append(path[-1] if path else -1)
            path.append(len(self.token_ids))
            self.token_ids.append(ids[depth])
            self.position_ids.append(depth)
        self.rows.append(row)
        self.places.append(path)

    def close(self) -> Pack:
        return Pack(
            np.array(self.token_ids, dtype=np.int64),
            np.array(self.position_ids, dtype=np.int64),
            np.array(self.parents, dtype=np.int64),
            tuple(self.rows),
            tuple(np.array(path, dtype=np.int64) for path in self.places),
        )


def _num_shared(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Number of leading tokens that are equal."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # halving, so that nearly all of the comparison is one of whole slices
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
