"""Statements compiled once and handed to the driver directly.

For what runs with every exchange: SQLAlchemy's own way from a statement to the driver takes ten times as long
as SQLite takes to answer. The statements are still SQLAlchemy's, so both databases understand them.
"""

from __future__ import annotations

import json
import re
from collections import namedtuple
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from nightschool.store.columns import Digest, Packed, pack, unpack

PARTS = (1, 8, 64, 256, 500)  # values in one IN (...): few distinct statements to compile

Process = Callable[[Any], Any]

_LAST_VALUE = re.compile(r"\((\?|%\(v0\)s(?:::\w+)?)\)(?!.*\(\?\))", re.DOTALL)


class Prepared:
    """One select, insert, update or delete whose values are all named bind parameters."""

    def __init__(self, statement: sa.Executable, suffix: str = "") -> None:
        self.statement: Any = statement
        self.suffix = suffix
        self._compiled: dict[str, _Compiled] = {}

    def all(self, conn: sa.Connection, **values: Any) -> list[Any]:
        """The rows of a select, as named tuples."""
        compiled = self._for(conn)
        return [compiled.row(row) for row in _run(conn, "execute", compiled.sql, compiled.bind(values)).fetchall()]

    def first(self, conn: sa.Connection, **values: Any) -> Any:
        """The first row of a select, or `None`."""
        rows = self.all(conn, **values)
        return rows[0] if rows else None

    def many(self, conn: sa.Connection, rows: Sequence[dict[str, Any]]) -> None:
        """Run a statement that writes once for each of `rows`; each has a value for every parameter."""
        if rows:
            compiled = self._for(conn)
            _run(conn, "executemany", compiled.sql, [compiled.bind(row) for row in rows])

    def _for(self, conn: sa.Connection) -> _Compiled:
        compiled = self._compiled.get(conn.dialect.name)
        if compiled is None:
            compiled = self._compiled[conn.dialect.name] = _Compiled(self.statement, conn.dialect, self.suffix)
        return compiled


class Lookup:
    """Rows whose `key` is one of many values, for one tenant. `columns` are selected; the key need not be.

    `at_most` is how many rows for each value, on average, `few` reads.
    """

    def __init__(
        self, key: sa.Column[Any], columns: Sequence[sa.ColumnElement[Any]], *also: Any, at_most: int | None = None
    ) -> None:
        tenant = key.table.c.tenant == sa.bindparam("tenant")
        value = sa.bindparam("v0", type_=key.type)
        self.statement = sa.select(*columns).where(tenant, *also, key.in_([value]))
        self.at_most = at_most
        self._compiled: dict[tuple[str, int], _Compiled] = {}

    def few(self, conn: sa.Connection, tenant: str, values: Sequence[Any]) -> list[Any] | None:
        """The same rows; `None` where there are, or may be, more than `at_most` allows."""
        found: list[Any] = []
        for start in range(0, len(values), PARTS[-1]):
            part = values[start : start + PARTS[-1]]
            rows = self.rows(conn, tenant, part)
            if len(rows) >= (self.at_most or 0) * _size(len(part)):
                return None
            found += rows
        return found

    def rows(self, conn: sa.Connection, tenant: str, values: Sequence[Any]) -> list[Any]:
        """Rows that match any of `values`, in no order."""
        found: list[Any] = []
        at = 0
        while at < len(values):
            size = _size(len(values) - at)
            part = list(values[at : at + size])
            part += part[-1:] * (size - len(part))
            compiled = self._for(conn, size)
            cursor = _run(conn, "execute", compiled.sql, compiled.bind_many(tenant, part))
            found += [compiled.row(row) for row in cursor.fetchall()]
            at += size
        return found

    def _for(self, conn: sa.Connection, size: int) -> _Compiled:
        key = conn.dialect.name, size
        if key not in self._compiled:
            limit = "" if self.at_most is None else f" LIMIT {self.at_most * size}"
            self._compiled[key] = _Compiled(self.statement, conn.dialect, limit, size)
        return self._compiled[key]


def insert_into(table: sa.Table, or_ignore: bool = False) -> Prepared:
    """An insert that takes a value for every column of `table`; with `or_ignore` rows that are there stay."""
    named = {column.name: sa.bindparam(column.name) for column in table.c}
    return Prepared(sa.insert(table).values(named), " ON CONFLICT DO NOTHING" if or_ignore else "")


class _Compiled:
    """A statement for one dialect: its text, how values go in and how rows come out."""

    def __init__(self, statement: Any, dialect: sa.Dialect, suffix: str = "", num_values: int = 1) -> None:
        compiled: Any = statement.compile(dialect=dialect)
        self.by_position = compiled.positiontup is not None
        names = list(compiled.positiontup or sorted(compiled.binds, key="v0".__eq__))
        types = {name: bind.type for name, bind in compiled.binds.items()}
        self.sql = f"{compiled}{suffix}"
        if num_values > 1:  # the one value of the only IN becomes many; in SQLite's case it is the last
            self.sql = _LAST_VALUE.sub(lambda one: _repeated(one.group(1), num_values), self.sql)
            names += [f"v{n}" for n in range(1, num_values)]
            types |= {f"v{n}": types["v0"] for n in range(1, num_values)}
        self.names = names
        self.take = itemgetter(*names) if len(names) > 1 else lambda values: (values[names[0]],)
        self.going_in = [(at, p) for at, name in enumerate(names) if (p := _going_in(types[name])) is not None]
        self.constants = {name: bind.value for name, bind in compiled.binds.items() if bind.value is not None}
        self.coming_out: list[tuple[int, Process]] = []
        self.make: Callable[[Any], Any] = tuple
        if isinstance(statement, sa.Select):
            columns = list(statement.selected_columns)
            processors = [_coming_out(column.type) for column in columns]
            self.coming_out = [(n, process) for n, process in enumerate(processors) if process is not None]
            self.make = namedtuple("Row", [str(column.key) for column in columns], rename=True)._make

    def bind(self, values: dict[str, Any]) -> Any:
        if self.constants:
            values = {**self.constants, **values}
        row = list(self.take(values))
        for at, process in self.going_in:
            if row[at] is not None:
                row[at] = process(row[at])
        return row if self.by_position else dict(zip(self.names, row, strict=True))

    def bind_many(self, tenant: str, values: Sequence[Any]) -> Any:
        """For a statement whose last parameters are `values`."""
        before = self.names[: -len(values)]
        process = next((process for at, process in self.going_in if at == len(before)), None)
        row = [tenant if name == "tenant" else self.constants[name] for name in before]
        row += values if process is None else map(process, values)
        return row if self.by_position else dict(zip(self.names, row, strict=True))

    def row(self, row: Any) -> Any:
        if self.coming_out:
            row = list(row)
            for n, process in self.coming_out:
                row[n] = process(row[n])
        return self.make(row)


def _size(num_values: int) -> int:
    """For how many values the statement is that takes so many, or the most."""
    return next((size for size in PARTS if size >= num_values), PARTS[-1])


def _repeated(placeholder: str, count: int) -> str:
    named = (placeholder.replace("v0", f"v{n}") for n in range(count))
    return f"({', '.join(named)})"


def _going_in(kind: Any) -> Process | None:
    """What the drivers cannot do by themselves. Bytes, numbers, booleans and text they take as they are."""
    if isinstance(kind, Digest):
        return bytes.fromhex
    if isinstance(kind, Packed):
        return pack
    return json.dumps if isinstance(kind, sa.JSON) else None


def _coming_out(kind: Any) -> Process | None:
    """Back again. SQLite knows no truth values; psycopg reads JSON itself."""
    if isinstance(kind, Digest):
        return lambda value: None if value is None else value.hex()
    if isinstance(kind, Packed):
        return lambda value: None if value is None else unpack(value)
    if isinstance(kind, sa.JSON):
        return lambda value: json.loads(value) if isinstance(value, str) else value
    if isinstance(kind, sa.Boolean):
        return lambda value: None if value is None else bool(value)
    return None


def _run(conn: sa.Connection, method: str, sql: str, values: Any) -> Any:
    """The driver's cursor after `method`, inside the connection's transaction (begun here if need be)."""
    if not conn.in_transaction():
        conn.begin()
    cursor = conn.connection.cursor()
    errors: Any = conn.dialect.loaded_dbapi.Error
    try:
        getattr(cursor, method)(sql, values)
    except errors as error:
        raise DBAPIError.instance(sql, None, error, errors, hide_parameters=True, dialect=conn.dialect) from error
    return cursor
