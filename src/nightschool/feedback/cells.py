"""Cells of CSV that programs for tables may open: a text never becomes a formula, and comes back as it was."""

from __future__ import annotations

FORMULA = ("=", "+", "-", "@", "\t", "\r")
QUOTE = "'"


def guarded(text: str) -> str:
    """`text` with an apostrophe before it where a program for tables would compute it, or take one away."""
    return QUOTE + text if text.startswith((*FORMULA, QUOTE)) else text


def unguarded(text: str) -> str:
    """What `guarded` was given."""
    return text[1:] if text.startswith(QUOTE) and text[1:].startswith((*FORMULA, QUOTE)) else text
