"""Rows out of CSV and Parquet files, those of feedback above all."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nightschool.errors import InputError, MissingError
from nightschool.types import Json

NEEDED = ("key_type", "key", "kind", "value")
COLUMNS = ("key_type", "key", "name", "kind", "value", "time", "author", "source", "scale")
BATCH_ROWS = 1000
LONGEST_CELL = 16 * 2**20
PARQUET = (".parquet", ".pq")


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row. `line` is where it begins in a CSV file (the header is line 1), its number in a Parquet file.

    A cell that is absent (no such column, a null, a row that ends early) is not among `cells`; "" is.
    """

    line: int
    cells: Json


@dataclass(frozen=True, slots=True)
class FeedbackTable:
    """An opened file: its rows, and the columns that are not looked at."""

    rows: Iterator[TableRow]
    ignored: tuple[str, ...]


def open_table(path: Path) -> FeedbackTable:
    """Open a .parquet file, or anything else as CSV (UTF-8, a header line).

    Raises:
        InputError: a needed column is missing, or the file is not what it is called.
        MissingError: the file, or the package that reads Parquet, is not there.
    """
    if not path.is_file():
        raise MissingError(f"There is no file {path}.", "", "nightschool feedback import FILE")
    names, rows = read_table(path, COLUMNS)
    return FeedbackTable(rows, _ignored(path, names))


def read_table(path: Path, wanted: Collection[str] | None = None) -> tuple[list[str], Iterator[TableRow]]:
    """The names of the columns, and the rows with the `wanted` ones, `None` for all. Raises as `open_table` does."""
    return _parquet(path, wanted) if path.suffix.lower() in PARQUET else _csv(path, wanted)


def _csv(path: Path, wanted: Collection[str] | None) -> tuple[list[str], Iterator[TableRow]]:
    csv.field_size_limit(LONGEST_CELL)
    with path.open(encoding="utf-8-sig", newline="") as file:
        names = next(_cells(path, csv.reader(file, strict=True)), (1, []))[1]
    return names, _csv_rows(path, names, set(names if wanted is None else wanted))


def _csv_rows(path: Path, names: list[str], wanted: set[str]) -> Iterator[TableRow]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = _cells(path, csv.reader(file, strict=True))
        next(lines)
        for line, cells in lines:
            if not cells:  # an empty line
                continue
            if len(cells) > len(names):
                yield TableRow(line, {"": cells[len(names) :]})
                continue
            yield TableRow(line, {name: cell for name, cell in zip(names, cells, strict=False) if name in wanted})


def _cells(path: Path, reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Each record with the line it begins on."""
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except (csv.Error, UnicodeDecodeError) as error:
            why = f"Line {line}: {error}." if isinstance(error, csv.Error) else "It is not UTF-8 throughout."
            raise InputError(f"{path.name} is no CSV.", why, "Save it as UTF-8 CSV.") from error
        yield line, cells


def _parquet(path: Path, wanted: Collection[str] | None) -> tuple[list[str], Iterator[TableRow]]:
    try:
        import pyarrow.parquet as parquet
        from pyarrow.lib import ArrowException
    except ImportError as error:
        why = "Reading Parquet needs the package pyarrow."
        raise MissingError(f"{path.name} was not read.", why, "pip install 'nightschool[parquet]'") from error
    try:
        file = parquet.ParquetFile(path)
    except (ArrowException, OSError) as error:
        raise InputError(f"{path.name} is no Parquet file.", f"{error}.", "Export it again.") from error
    names = list(file.schema_arrow.names)
    used = [name for name in names if wanted is None or name in wanted]

    def rows() -> Iterator[TableRow]:
        number = 0
        for batch in file.iter_batches(BATCH_ROWS, columns=used):
            for found in batch.to_pylist():
                number += 1
                yield TableRow(number, {name: cell for name, cell in found.items() if cell is not None})

    return names, rows()


def _ignored(path: Path, names: list[str]) -> tuple[str, ...]:
    """Raises: InputError when a column is missing or there twice."""
    missing = [name for name in NEEDED if name not in names]
    twice = [name for name in COLUMNS if names.count(name) > 1]
    if missing or twice:
        why = f"The column {(missing or twice)[0]!r} is {'missing' if missing else 'there twice'}."
        raise InputError(f"{path.name} was not taken in.", why, f"Its header names {','.join(COLUMNS[:7])}.")
    return tuple(name for name in names if name not in COLUMNS)
