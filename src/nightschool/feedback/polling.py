"""Whose opinion is asked for: a random share of replies, so that silence of all others can be judged by them."""

from __future__ import annotations

import hashlib

POLLED = "polled"  # the flag of an exchange whose reply asked for an opinion


def is_polled(exchange_id: str, share: float) -> bool:
    """Whether the reply to an exchange asks for an opinion: by a hash of its id, which nobody outside can choose."""
    if share <= 0:
        return False
    digest = hashlib.sha256(f"poll {exchange_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64 < share
