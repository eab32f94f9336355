"""Texts as sparse bags of words: words and pairs of neighbors, digits folded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import sparse

WORD = re.compile(r"[\w']+")
NUMBER = "<number>"
MIN_TEXTS = 2
MAX_FEATURES = 2000
CONSTANT = 3.0

Features = Callable[[Any], set[str]]


def cluster_of(text: str) -> str:
    """What a text has in common with those that differ from it in numbers, case and punctuation alone."""
    return " ".join(_words(text))


def features_of(text: str) -> set[str]:
    """Words and neighboring pairs, lower case; a word with a digit in it is a number, whichever."""
    words = _words(text)
    pairs = [f"{left} {right}" for left, right in pairwise(words)]
    return {*words, *pairs}


def _words(text: str) -> list[str]:
    return [NUMBER if any(c.isdigit() for c in word) else word for word in WORD.findall(text.lower())]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The features that occur in at least `MIN_TEXTS` of the texts it was made from, the most frequent first.

    `features`: what a text has; anything else may stand for a text where this knows what it has.
    """

    columns: dict[str, int]
    features: Features = features_of

    @classmethod
    def of(cls, texts: Iterable[Any], features: Features = features_of) -> Vocabulary:
        counts = Counter(feature for text in texts for feature in features(text))
        kept = sorted((f for f, n in counts.items() if n >= MIN_TEXTS), key=lambda f: (-counts[f], f))
        return cls({feature: column for column, feature in enumerate(kept[:MAX_FEATURES])}, features)

    def matrix(self, texts: Sequence[Any]) -> sparse.csr_matrix:
        """One row per text: presence scaled to unit length, then a constant column.

        Shapes: (N, len(columns) + 1). Unit length gives every text the same prior variance under a ridge;
        the constant is large, so that the common rate is hardly shrunk.
        """
        rows, columns, values = [], [], []
        for row, text in enumerate(texts):
            found = sorted(self.columns[f] for f in self.features(text) if f in self.columns)
            rows += [row] * (len(found) + 1)
            columns += [*found, len(self.columns)]
            values += [*[max(1, len(found)) ** -0.5] * len(found), CONSTANT]
        shape = (len(texts), len(self.columns) + 1)
        return sparse.csr_matrix((np.array(values), (rows, columns)), shape=shape)
