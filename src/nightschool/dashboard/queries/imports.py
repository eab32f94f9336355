"""Files of other tools that were taken in, each with its report."""

from __future__ import annotations

import sqlalchemy as sa

from nightschool.dashboard.queries.scope import Scope
from nightschool.store.schema import imports
from nightschool.types import Json

ROWS = 200


def import_list(conn: sa.Connection, scope: Scope) -> Json:
    """The newest imports with their whole reports. One query."""
    i = imports.c
    query = sa.select(i.id, i.format, i.source, i.digest, i.report, i.at).where(i.tenant == scope.tenant)
    rows = conn.execute(query.order_by(i.at.desc(), i.id.desc()).limit(ROWS)).mappings()
    return {"rows": [dict(row) for row in rows]}
