"""Files that are no JSON, as JSON lines: tables of conversations (CSV, Parquet) and OTLP in protobuf."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nightschool.errors import InputError, MissingError
from nightschool.feedback.protobuf import read_telemetry
from nightschool.feedback.tables import PARQUET, read_table
from nightschool.types import Json

PROTOBUF = (".pb", ".binpb")
TABLES = (".csv", *PARQUET)
PACKED = (*TABLES, *PROTOBUF)
NESTED = ("messages", "tools", "request", "response")  # columns that a table may hold as JSON text


@contextmanager
def as_json(path: Path) -> Iterator[Path]:
    """The file itself, or one with what it holds as JSON lines, for as long as the block lasts.

    Raises: MissingError for a file or a package that is not there, InputError for one that is not what it is called.
    """
    suffix = path.suffix.lower()
    if suffix not in PACKED:
        yield path
        return
    if not path.is_file():
        raise MissingError(f"There is no file {path}.", "", "nightschool import FILE")
    with tempfile.TemporaryDirectory(prefix="nightschool-") as folder:
        lines = Path(folder) / f"{path.name}.jsonl"
        with lines.open("w", encoding="utf-8") as target:
            for record in _exports(path) if suffix in PROTOBUF else _conversations(path):
                target.write(json.dumps(record, default=str) + "\n")
        yield lines


def _conversations(path: Path) -> Iterator[Json]:
    """The rows of a table. A null inside a row is taken for absent, as columns fill in what a row does not have."""
    names, rows = read_table(path)
    if not {"messages", "request"} & set(names):
        why = f"It has no column `messages`, but {', '.join(names[:8])}."
        raise InputError(f"{path.name} holds no conversations.", why, "Feedback: nightschool feedback import FILE")
    for row in rows:
        yield {name: _cell(name, cell) for name, cell in row.cells.items() if cell not in (None, "")}


def _cell(name: str, cell: Any) -> Any:
    if name in NESTED and isinstance(cell, str):
        try:
            return json.loads(cell)
        except ValueError:
            return cell  # it is refused with its line
    return _told(cell)


def _told(value: Any) -> Any:
    """Without the members that a column's type put in; `content` may be null where there are calls."""
    if isinstance(value, list):
        return [_told(item) for item in value]
    if isinstance(value, dict):
        return {key: _told(item) for key, item in value.items() if item is not None or key == "content"}
    return value


def _exports(path: Path) -> Iterator[Json]:
    """One export, or several with their lengths before them (4 bytes, the highest first), as collectors write them."""
    raw = path.read_bytes()
    for message in _cut(raw) or [raw]:
        yield read_telemetry(message)


def _cut(raw: bytes) -> list[bytes]:
    """The messages, where lengths and bytes come out even; else none."""
    found: list[bytes] = []
    at = 0
    while at < len(raw):
        size = int.from_bytes(raw[at : at + 4])
        if size == 0 or at + 4 + size > len(raw):
            return []
        found.append(raw[at + 4 : at + 4 + size])
        at += 4 + size
    return found
