"""Sampled tokens as the token view shows them: text, probability, and how surprised the policy was."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

from nightschool.dashboard.formatting import number, probability
from nightschool.dashboard.marks import plain

Decode = Callable[[Sequence[int]], list[str]]
SURPRISE_STEPS = (0.1, 0.7, 1.6, 3.0)  # nats: upper ends of s0 to s3
PAGE_TOKENS = 400


@dataclass(frozen=True, slots=True)
class Token:
    """One sampled token. `tone` is s0 to s4 by −log p, empty where the engine gave no log-probability."""

    id: int
    text: str
    logprob: float | None
    tone: str

    @property
    def title(self) -> str:
        shown = self.text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")
        if self.logprob is None:
            return f"{self.id} “{plain(shown)}” log-prob missing"
        return (
            f"{self.id} “{plain(shown)}” p {probability(math.exp(min(0.0, self.logprob)))}, "
            f"log-prob {number(self.logprob, 2)}"
        )


def surprise_class(logprob: float | None) -> str:
    """s0 … s4 by −log p: < 0.1, < 0.7, < 1.6, < 3, more."""
    if logprob is None or math.isnan(logprob):
        return ""
    for index, edge in enumerate(SURPRISE_STEPS):
        if -logprob < edge:
            return f"s{index}"
    return "s4"


def token_row(ids: Sequence[int], logprobs: Sequence[float | None] | None, decode: Decode | None) -> list[Token]:
    """Tokens in order. Without a tokenizer the ids themselves stand in for the text."""
    texts = decode(ids) if decode else [f"{token_id} " for token_id in ids]
    scores = logprobs if logprobs is not None else [None] * len(ids)
    return [
        Token(token_id, text, score, surprise_class(score))
        for token_id, text, score in zip(ids, texts, scores, strict=True)
    ]


@lru_cache(maxsize=4)
def decoder(folder: str) -> Decode | None:
    """Decodes ids one by one with the tokenizer in `folder`; None where there is none."""
    path = Path(folder) / "tokenizer.json"
    if not path.exists():
        return None
    tokenizer = Tokenizer.from_file(str(path))

    def decode(ids: Sequence[int]) -> list[str]:
        return [tokenizer.decode([token_id], skip_special_tokens=False) for token_id in ids]

    return decode
