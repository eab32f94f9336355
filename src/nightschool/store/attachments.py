"""Images and files inside messages, as blobs of their own.

A long run of base64 is stored once, however often a conversation resends it and in however many messages it
stands. In the message a reference takes its place; in the raw body a reference to the same blob.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import sqlalchemy as sa

from nightschool.store.blobs import get_blobs, stored
from nightschool.store.schema import blobs

MIN_CHARS = 2**15  # shorter ones stay where they are
MARK = "blob:sha256:"

RUN = re.compile(rb"[A-Za-z0-9+/=_-]{%d,}" % MIN_CHARS)
_text_run = re.compile(RUN.pattern.decode())
_reference = re.compile(MARK + r"([0-9a-f]{64})")


def lift(value: Any, found: dict[str, bytes]) -> Any:
    """A JSON value with references in place of its runs, which go into `found` by their hash."""
    if isinstance(value, str):
        return _text_run.sub(lambda match: _lifted(match[0], found), value) if len(value) >= MIN_CHARS else value
    if isinstance(value, dict):
        return {key: lift(item, found) for key, item in value.items()}
    return [lift(item, found) for item in value] if isinstance(value, list) else value


def restore(conn: sa.Connection, tenant: str, value: Any) -> Any:
    """The JSON value as it was before `lift`. A reference to nothing that is stored is text like any other."""
    named: set[str] = set()
    _collect(value, named)
    if not named:
        return value
    there = stored(conn, blobs.c.hash, tenant, sorted(named))
    return _restored(value, get_blobs(conn, tenant, there)) if there else value


def named_in(content: bytes) -> set[str]:
    """The hashes that a message's JSON refers to, stored or not."""
    return set(_reference.findall(content.decode("utf-8", "replace"))) if MARK.encode() in content else set()


def _lifted(run: str, found: dict[str, bytes]) -> str:
    data = run.encode()
    name = hashlib.sha256(data).hexdigest()
    found[name] = data
    return MARK + name


def _collect(value: Any, named: set[str]) -> None:
    if isinstance(value, str):
        if MARK in value:
            named.update(_reference.findall(value))
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            _collect(item, named)


def _restored(value: Any, found: dict[str, bytes]) -> Any:
    if isinstance(value, str):
        return _reference.sub(lambda m: found[m[1]].decode() if m[1] in found else m[0], value)
    if isinstance(value, dict):
        return {key: _restored(item, found) for key, item in value.items()}
    return [_restored(item, found) for item in value] if isinstance(value, list) else value
