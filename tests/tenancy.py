"""Does a statement ask for the rows of one tenant?

A table counts as bound when its `tenant` column is compared with a value, or with the tenant of another table in
the same statement.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql import visitors
from sqlalchemy.sql.elements import BinaryExpression
from sqlalchemy.sql.operators import eq, in_op

from nightschool.store.schema import metadata

TABLES = frozenset(metadata.tables)
# The tables that are read across tenants: a key says which tenant its caller is; retention visits every tenant.
ACROSS = frozenset({"keys", "meta"})


def missing_tenant(statement: sa.ClauseElement) -> str | None:
    """A table of which the statement asks for every tenant's rows, or `None`."""
    if isinstance(statement, sa.sql.dml.Insert):
        return None  # the column takes no null, and has no default
    tables: set[Any] = set()
    bound: set[Any] = set()
    for element in visitors.iterate(statement):
        is_alias = isinstance(element, sa.Alias) and isinstance(element.element, sa.Table)
        if is_alias or (isinstance(element, sa.Table) and element.name in TABLES - ACROSS):
            tables.add(element)
        elif isinstance(element, BinaryExpression) and element.operator in (eq, in_op):
            sides = (element.left, element.right)
            bound.update(side.table for side in sides if isinstance(side, sa.Column) and side.name == "tenant")
    aliased = {table.element for table in tables if isinstance(table, sa.Alias)}
    free = sorted(str(table) for table in tables - bound if table not in aliased)
    return free[0] if free else None
