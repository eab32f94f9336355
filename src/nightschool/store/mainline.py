"""Which exchanges of a session are its main branch. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from nightschool.types import Branch


class Placed(Protocol):
    """An exchange as the tree sees it: `above_id` is the one it continues, `leaf_hash` the last message of its
    prompt."""

    @property
    def id(self) -> str: ...

    @property
    def above_id(self) -> str | None: ...

    @property
    def branch(self) -> Branch: ...

    @property
    def started_at(self) -> float: ...

    @property
    def status(self) -> str: ...

    @property
    def leaf_hash(self) -> str | None: ...


T = TypeVar("T", bound=Placed)


def main_branch(turns: Sequence[T]) -> list[T]:
    """The turns of the main branch, in order; a reply that was cut off counts where the agent went on from it.

    Of replies to one history the longest continuation counts, of equals the later. A branch begun anew (a
    harness that keeps its own memory) goes on with it, unless it repeats a beginning.
    """
    by_id = {turn.id: turn for turn in turns}
    chains: dict[str, list[T]] = {}
    tops: dict[str, str | None] = {}
    for turn in sorted(turns, key=lambda t: (t.started_at, t.id)):
        if turn.branch != Branch.MAIN:
            continue
        above = _main_above(turn, by_id)
        chains[turn.id] = [*chains.get(above or "", []), turn]
        top = chains[turn.id][0]
        tops[turn.id] = top.leaf_hash or top.id
    best: dict[str | None, list[T]] = {}
    for turn_id, chain in chains.items():
        if chain[-1].status == "ok":
            known = best.get(tops[turn_id], [])
            best[tops[turn_id]] = max(known, chain, key=lambda c: (len(c), c[-1].started_at if c else 0.0))
    return [turn for chain in sorted(best.values(), key=lambda c: c[0].started_at) for turn in chain]


def _main_above(turn: Placed, by_id: Mapping[str, Placed]) -> str | None:
    """The nearest turn of the main branch that this one goes on from, perhaps by way of a summary."""
    above = by_id.get(turn.above_id or "")
    while above is not None and above.branch != Branch.MAIN:
        above = by_id.get(above.above_id or "")
    return None if above is None else above.id
