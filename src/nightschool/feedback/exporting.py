"""Feedback as CSV: what `nightschool feedback import` takes in, and what became of each item."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from nightschool.feedback.cells import guarded
from nightschool.store.targets import LAST
from nightschool.types import FeedbackKind, Json, TargetKind

TAKEN_IN = ("key_type", "key", "name", "kind", "value", "time", "author", "source", "scale")
TOLD = ("when", "session", "state", "handled", "reason", "id")
COLUMNS: tuple[str, ...] = (*TAKEN_IN, *TOLD)
BOM = b"\xef\xbb\xbf"  # without it programs for tables guess another encoding


def as_csv(rows: Iterable[Mapping[str, Any]], marks: Mapping[str, Sequence[Any]]) -> bytes:
    """Rows of the feedback table, and their marks of the inbox, as one file. Texts never become formulas."""
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, COLUMNS)
    writer.writeheader()
    for row in rows:
        writer.writerow(cells(row, marks.get(row["id"], ())))
    return BOM + file.getvalue().encode("utf-8", "backslashreplace")


def cells(row: Mapping[str, Any], marks: Sequence[Any]) -> Json:
    """One item. `time` is exact, for programs; `when` says the same for people."""
    key_type, key = _key(row)
    last = marks[-1] if marks else None
    return {
        "key_type": key_type,
        "key": guarded(key),
        "name": guarded(row["name"]),
        "kind": row["kind"],
        "value": _value(row["kind"], row["value"]),
        "time": repr(row["observed_at"]),
        "author": guarded(row["author"] or ""),
        "source": row["source"],
        "scale": "" if row["scale"] is None else json.dumps(row["scale"]),
        "when": datetime.fromtimestamp(row["observed_at"], UTC).isoformat(timespec="seconds"),
        "session": row["session_id"] or "",
        "state": row["state"],
        "handled": "" if last is None else last.value,
        "reason": "" if last is None else guarded(str(last.evidence.get("reason", ""))),
        "id": row["id"],
    }


def _key(row: Mapping[str, Any]) -> tuple[str, str]:
    """The target as its sender named it: so it is known again. A call of a counted turn is named by its exchange."""
    kind, name = row["target_kind"], row["target_id"]
    call = row["tool_call"] if row["tool_call_id"] is None else row["tool_call_id"]
    if kind == TargetKind.TOOL_CALL:
        return kind, f"{row['exchange_id'] if row['turn'] is not None and row['exchange_id'] else name}#{call}"
    if kind == TargetKind.TURN:
        return kind, f"{name}#{'last' if row['turn'] == LAST else row['turn']}"
    return kind, name


def _value(kind: str, value: Any) -> str:
    if kind == FeedbackKind.THUMB:
        return "up" if value else "down"
    if kind in (FeedbackKind.NUMBER, FeedbackKind.OUTCOME, FeedbackKind.PREFERENCE) or not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return guarded(value)
