"""What a pack's nodes may look at, the plain way: the truth for attention that never builds it."""

from __future__ import annotations

import numpy as np


def tree_mask(parents: np.ndarray) -> np.ndarray:
    """(T, T), True where the row's token may look at the column's: its ancestors and itself."""
    visible = np.eye(len(parents), dtype=bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            visible[node] |= visible[parent]
    return visible
