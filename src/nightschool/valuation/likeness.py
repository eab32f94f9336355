"""How alike two texts are."""

from __future__ import annotations

from collections.abc import Sequence


def rouge_l(one: Sequence[object], other: Sequence[object]) -> float:
    """The F-measure of the longest common subsequence, from 0 to 1; 0 where either is empty.

    Implements: Lin, ROUGE (2004), with equal weights.
    """
    if not one or not other:
        return 0.0
    row = [0] * (len(other) + 1)
    for left in one:
        before = 0
        for place, right in enumerate(other, start=1):
            above = row[place]
            row[place] = before + 1 if left == right else max(above, row[place - 1])
            before = above
    return 2 * row[-1] / (len(one) + len(other))
