"""Statements compiled once and handed to the driver directly.

For what runs with every exchange: SQLAlchemy's own way from a statement to the driver takes ten times as long
as SQLite takes to answer. The statements are still SQLAlchemy's, so both databases understand them.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

PARTS = (1, 8, 64, 500)  # values in one IN (...): few distinct statements to compile

Process = Callable[[Any], Any]


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
    """Rows whose `key` is one of many values, for one tenant. `columns` are selected; the key need not be."""

    def __init__(self, key: sa.Column[Any], columns: Sequence[sa.ColumnElement[Any]], *also: Any) -> None:
        tenant = key.table.c.tenant == sa.bindparam("tenant")
        self._by_size = {
            size: Prepared(
                sa.select(*columns).where(
                    tenant, *also, key.in_([sa.bindparam(f"v{n}", type_=key.type) for n in range(size)])
                )
            )
            for size in PARTS
        }

    def rows(self, conn: sa.Connection, tenant: str, values: Sequence[Any]) -> list[Any]:
        """Rows that match any of `values`, in no order."""
        found: list[Any] = []
        at = 0
        while at < len(values):
            size = next((size for size in PARTS if size >= len(values) - at), PARTS[-1])
            part = list(values[at : at + size])
            part += part[-1:] * (size - len(part))
            names = {f"v{n}": value for n, value in enumerate(part)}
            found += self._by_size[size].all(conn, tenant=tenant, **names)
            at += size
        return found


def insert_into(table: sa.Table, or_ignore: bool = False) -> Prepared:
    """An insert that takes a value for every column of `table`; with `or_ignore` rows that are there stay."""
    named = {column.name: sa.bindparam(column.name) for column in table.c}
    return Prepared(sa.insert(table).values(named), " ON CONFLICT DO NOTHING" if or_ignore else "")


class _Compiled:
    """A statement for one dialect: its text, how values go in and how rows come out."""

    def __init__(self, statement: Any, dialect: sa.Dialect, suffix: str) -> None:
        compiled: Any = statement.compile(dialect=dialect)
        binds = {name: bind.type.dialect_impl(dialect).bind_processor(dialect) for name, bind in compiled.binds.items()}
        self.sql = f"{compiled}{suffix}"
        self.by_position = compiled.positiontup is not None
        self.bound: list[tuple[str, Process | None]] = [(n, binds[n]) for n in compiled.positiontup or binds]
        self.constants = {name: bind.value for name, bind in compiled.binds.items() if bind.value is not None}
        self.fetched: list[tuple[int, Process]] = []
        self.make: Callable[[Any], Any] = tuple
        if isinstance(statement, sa.Select):
            columns = list(statement.selected_columns)
            processors = [column.type.dialect_impl(dialect).result_processor(dialect, None) for column in columns]
            self.fetched = [(n, process) for n, process in enumerate(processors) if process is not None]
            self.make = namedtuple(
                "Row", [column.key or f"c{n}" for n, column in enumerate(columns)], rename=True
            )._make

    def bind(self, values: dict[str, Any]) -> Any:
        if self.constants:
            values = {**self.constants, **values}
        if self.by_position:
            return [values[name] if p is None else p(values[name]) for name, p in self.bound]
        return {name: values[name] if p is None else p(values[name]) for name, p in self.bound}

    def row(self, row: Any) -> Any:
        if self.fetched:
            row = list(row)
            for n, process in self.fetched:
                row[n] = process(row[n])
        return self.make(row)


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
