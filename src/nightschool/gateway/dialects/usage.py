"""Token counts as an engine tells them, under one set of names."""

from __future__ import annotations

from typing import Any

from nightschool.types import Json

# Name in the store: where chat completions (and Responses) put it.
PLACES = {
    "prompt_tokens": (("prompt_tokens",), ("input_tokens",)),
    "completion_tokens": (("completion_tokens",), ("output_tokens",)),
    "cached_tokens": (("prompt_tokens_details", "cached_tokens"), ("input_tokens_details", "cached_tokens")),
    "reasoning_tokens": (
        ("completion_tokens_details", "reasoning_tokens"),
        ("output_tokens_details", "reasoning_tokens"),
    ),
}


def count_usage(told: Any) -> Json | None:
    """The counts of an OpenAI `usage` object that are whole numbers, `None` where there are none."""
    counts = {name: _first(told, places) for name, places in PLACES.items()}
    return {name: count for name, count in counts.items() if count is not None} or None


def whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _first(told: Any, places: tuple[tuple[str, ...], ...]) -> int | None:
    for place in places:
        value = told
        for key in place:
            value = value.get(key) if isinstance(value, dict) else None
        if whole(value) is not None:
            return value
    return None
