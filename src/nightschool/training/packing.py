"""Prefix forest: every unique prefix token goes through the model once (design law 7).

Sequences that begin alike (one system prompt, the turns of one session, a group of rollouts) form a trie.
A `Pack` holds some of its branches flattened in depth-first order: a parent always comes before its
children, a token attends to its ancestors and itself, and its position is its depth. One forward over a
pack with `tree_mask` and `position_ids` gives what one padded row per sequence would give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nightschool.errors import InputError

TOKEN_BUDGET = 4096


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

    def tree_mask(self) -> np.ndarray:
        """(T, T), True where the row's token may look at the column's: its ancestors and itself."""
        visible = np.eye(self.num_tokens, dtype=bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                visible[node] |= visible[parent]
        return visible


def pack(sequences: Sequence[Sequence[int]], token_budget: int = TOKEN_BUDGET) -> list[Pack]:
    """Flatten the prefix forest of `sequences` into packs of at most `token_budget` tokens.

    The result does not depend on the order of `sequences`, except for `rows`. A forest larger than the
    budget is cut between branches, and the prefix shared across the cut is repeated.

    Edge: a single sequence longer than the budget gets a pack of its own.
    """
    if any(not len(sequence) for sequence in sequences):
        raise InputError("A sequence has no tokens.", "Nothing can be predicted from it.", "Leave it out.")
    ordered = sorted(range(len(sequences)), key=lambda row: tuple(sequences[row]))
    packs: list[Pack] = []
    open_pack = _OpenPack()
    for row in ordered:
        ids = sequences[row]
        if open_pack.rows and open_pack.size_with(ids) > token_budget:
            packs.append(open_pack.close())
            open_pack = _OpenPack()
        open_pack.add(row, ids)
    if open_pack.rows:
        packs.append(open_pack.close())
    return packs


class _OpenPack:
    """A pack being filled with branches in lexicographic order, so only the newest branch can be shared."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.position_ids: list[int] = []
        self.parents: list[int] = []
        self.rows: list[int] = []
        self.places: list[list[int]] = []

    def size_with(self, ids: Sequence[int]) -> int:
        return len(self.token_ids) + len(ids) - self._shared(ids)

    def add(self, row: int, ids: Sequence[int]) -> None:
        shared = self._shared(ids)
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

    def _shared(self, ids: Sequence[int]) -> int:
        if not self.places:
            return 0
        shared = 0
        for node, token in zip(self.places[-1], ids, strict=False):
            if self.token_ids[node] != token:
                break
            shared += 1
        return shared
