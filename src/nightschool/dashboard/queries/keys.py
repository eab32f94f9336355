"""The keys of agents and people: names, roles and dates. Their hashes are read by nobody."""

from __future__ import annotations

import sqlalchemy as sa

from nightschool.dashboard.queries.scope import Scope
from nightschool.store.schema import keys
from nightschool.types import Json


def key_list(conn: sa.Connection, scope: Scope) -> Json:
    """Every key, those in use first. One query."""
    k = keys.c
    query = sa.select(k.id, k.name, k.role, k.training, k.rate_per_minute, k.created_at, k.revoked_at)
    query = query.where(k.tenant == scope.tenant).order_by(k.revoked_at.is_not(None), k.created_at.desc(), k.id)
    return {"rows": [dict(row) for row in conn.execute(query).mappings()]}
