"""Recorded sessions to write files of, and what stands in those files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from nightschool.feedback.record import insert_feedback
from nightschool.feedback.values import NewFeedback
from nightschool.imports.exporting import Order, export
from nightschool.store.database import Store
from nightschool.store.exchanges import insert_exchange
from nightschool.store.ids import new_id
from nightschool.store.records import Caller, Record, Timing
from nightschool.store.splits import split_key, split_of
from nightschool.types import Choice, FeedbackKind, Json, Split, TargetKind

SYSTEM = {"role": "system", "content": "be brief"}
USER = {"role": "user", "content": "hi"}
MORE = {"role": "user", "content": "and?"}
REPLY = {"role": "assistant", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"t":  "2025"}'}}


def put(
    store: Store, messages: list[Json], reply: Json = REPLY, session: str = "s1", at: float = 1000.0, user: str = "",
    **fields: Any,
) -> str:  # fmt: skip
    """Record one exchange; its id."""
    choices = fields.pop("choices", None) or (Choice(0, reply, "stop"),)
    caller = Caller(agent="shop", session=session, header_user=user or None)
    record = Record(
        fields.pop("id", new_id()), replace(caller, **fields.pop("caller", {})), Timing(at), "base",
        json.dumps({"messages": messages}).encode(), messages=tuple(messages), choices=choices, **fields,
    )  # fmt: skip
    return store.write(lambda conn: insert_exchange(conn, store.tenant, record))


def say(
    store: Store, target: str, kind: FeedbackKind, value: Any, name: str = "x", on: TargetKind = TargetKind.EXCHANGE
) -> None:
    item = NewFeedback(on, target, kind, value, name)
    store.write(lambda conn: insert_feedback(conn, store.tenant, item, True, 5000.0))


def written(store: Store, path: Path, format: str, agent: str = "shop", **more: Any) -> list[Json]:
    """The lines of a file of that format."""
    with store.read() as conn:
        export(conn, store.tenant, Order(format, agent, path, **more), lambda done, of: None)
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def trained_on(store: Store) -> str:
    """A user whose exchanges are in the train split."""
    with store.read() as conn:
        key = split_key(conn, store.tenant)
    return next(name for name in map(str, range(100)) if split_of(key, name) == Split.TRAIN)
