"""Which texts say nearly the same: hashed shingles of three words, and how many of them two texts share.

Implements: Broder, Compression and Complexity of Sequences (1997), pages 21-29: of two sets, the least hash of both
agrees with the probability of their resemblance (what they share, by what they have together).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from zlib import crc32

import numpy as np

WIDTH = 3  # words of a shingle
HASHES, BANDS = 64, 8
ALIKE = 0.8
WORDS = re.compile(r"\d+|[^\W\d]+")

_dice = np.random.default_rng(0)  # fixed: the same votes make the same groups on every machine
_FACTORS = _dice.integers(2**63, size=HASHES, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
_SHIFTS = _dice.integers(2**63, size=HASHES, dtype=np.uint64)


def template(text: str) -> str:
    """A request without what varies between two of its kind: letter case, punctuation, numbers."""
    return " ".join("#" if word.isdecimal() else word for word in WORDS.findall(text.casefold()))


def groups(texts: Sequence[Sequence[str]]) -> list[int]:
    """The group of each text, given as words: the place of the first one that it resembles by `ALIKE`, often its own.

    Shapes: (N,). Edge: texts just as alike as `ALIKE` are found 3 times in 4, those of 0.9 and more 99 in 100.
    """
    leaders: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    signatures: list[np.ndarray] = []
    found: list[int] = []
    for place, words in enumerate(texts):
        mine = _signature(words)
        signatures.append(mine)
        keys = [(band, part.tobytes()) for band, part in enumerate(mine.reshape(BANDS, -1))]
        near = sorted({leader for key in keys for leader in leaders.get(key, ())})
        group = next((n for n in near if float((signatures[n] == mine).mean()) >= ALIKE), place)
        if group == place:
            for key in keys:
                leaders[key].append(place)
        found.append(group)
    return found


def _signature(words: Sequence[str]) -> np.ndarray:
    """(HASHES,) the least of each hash over the shingles; a text shorter than one is a shingle by itself."""
    starts = range(max(1, len(words) - WIDTH + 1))
    values = {crc32(" ".join(words[start : start + WIDTH]).encode("utf-8", "surrogatepass")) for start in starts}
    shingles = np.array(sorted(values), dtype=np.uint64)
    return ((_FACTORS[:, None] * shingles + _SHIFTS[:, None]) >> np.uint64(32)).min(axis=1).astype(np.uint32)
