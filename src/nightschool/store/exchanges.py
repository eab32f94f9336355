"""Exchanges in and out of the store."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from nightschool.store.blobs import get_blobs
from nightschool.store.insertion import insert_exchange, insert_exchanges
from nightschool.store.prompts import load_prompt, session_prompts
from nightschool.store.records import Caller, Record, Timing
from nightschool.store.schema import blobs, messages
from nightschool.store.schema import choices as choice_table
from nightschool.store.schema import exchanges as table
from nightschool.store.sessions import find_session
from nightschool.store.tree import load_branches, with_content
from nightschool.store.vectors import unpack_floats, unpack_ids
from nightschool.types import Branch, Choice, Exchange, Fidelity, Json, LogprobProvenance, Purpose, Sampler, Split

__all__ = [
    "Caller",
    "Record",
    "Timing",
    "find_exchange",
    "find_session",
    "insert_exchange",
    "insert_exchanges",
    "load_exchange",
    "session_exchanges",
]


Given = dict[str, list[Choice]]


class Asked(NamedTuple):
    """What a request brought: messages, tools, and its packed prompt ids where the engine told them."""

    messages: tuple[Json, ...]
    tools: tuple[Json, ...]
    prompt: bytes | None


def load_exchange(conn: sa.Connection, tenant: str, exchange_id: str) -> Exchange | None:
    """The exchange with this id, whole, or `None`."""
    row = conn.execute(sa.select(table).where(table.c.tenant == tenant, table.c.id == exchange_id)).first()
    if row is None:
        return None
    given = _choices(conn, tenant, choice_table.c.exchange_id == exchange_id)
    return _exchanges(conn, tenant, [row], {row.id: load_prompt(conn, tenant, exchange_id)}, given)[0]


def find_exchange(conn: sa.Connection, tenant: str, key: str) -> str | None:
    """The exchange known by `key`: its own id, else the upstream's id, else its external key (the newest)."""
    for column in (table.c.id, table.c.upstream_id, table.c.external_key):
        query = sa.select(table.c.id).where(table.c.tenant == tenant, column == key)
        found = conn.scalar(query.order_by(table.c.started_at.desc()).limit(1))
        if found is not None:
            return found
    return None


def session_exchanges(conn: sa.Connection, tenant: str, session_id: str) -> list[Exchange]:
    """All exchanges of a session (by its own id, see `find_session`), oldest first. Five queries, however many."""
    query = sa.select(table).where(table.c.tenant == tenant, table.c.session_id == session_id)
    rows = conn.execute(query.order_by(table.c.started_at, table.c.id)).all()
    prompts = session_prompts(conn, tenant, session_id)
    own = sa.select(table.c.id).where(table.c.tenant == tenant, table.c.session_id == session_id)
    given = _choices(conn, tenant, choice_table.c.exchange_id.in_(own))
    return _exchanges(conn, tenant, rows, prompts, given)


def _exchanges(
    conn: sa.Connection, tenant: str, rows: Sequence[Any], prompts: dict[str, bytes | None], given: Given
) -> list[Exchange]:
    """Exchanges from their rows; messages and tools that several share are read once."""
    branches = load_branches(conn, tenant, [row.prompt_message for row in rows if row.prompt_message])
    named = get_blobs(conn, tenant, [row.tools_blob for row in rows if row.tools_blob])
    tools = {name: tuple(json.loads(data)) for name, data in named.items()}
    found: list[Exchange] = []
    for row in rows:
        asked = Asked(branches.get(row.prompt_message, ()), tools.get(row.tools_blob, ()), prompts[row.id])
        found.append(_exchange(row, asked, tuple(given.get(row.id, ()))))
    return found


def _exchange(row: Any, asked: Asked, choices: tuple[Choice, ...]) -> Exchange:
    return Exchange(
        id=row.id,
        tenant=row.tenant,
        agent=row.agent,
        session_id=row.session_id,
        principal=row.principal,
        split=Split(row.split),
        purpose=Purpose(row.purpose),
        policy_version=row.policy_version,
        started_at=row.started_at,
        status=row.status,
        messages=asked.messages,
        tools=asked.tools,
        choices=choices,
        prompt_ids=None if asked.prompt is None else unpack_ids(asked.prompt),
        fidelity=Fidelity(row.fidelity),
        logprob_provenance=LogprobProvenance(row.logprob_provenance),
        sampler=Sampler(**row.sampler),
        upstream_id=row.upstream_id,
        parent_exchange_id=row.parent_exchange_id,
        exam_id=row.exam_id,
        branch=Branch(row.branch),
        fidelity_reason=row.fidelity_reason,
        context_complete=row.context_complete,
        flags=tuple(row.flags or ()),
    )


def _choices(conn: sa.Connection, tenant: str, whose: sa.ColumnElement[bool]) -> Given:
    """Choices by their exchange, in order."""
    c = choice_table.c
    data, blob = with_content()
    columns = (c.exchange_id, c.index.label("position"), c.finish_reason, c.completion_ids, c.behavior_logprobs, data)
    node = sa.and_(messages.c.tenant == c.tenant, messages.c.hash == c.message_hash)
    query = sa.select(*columns).select_from(choice_table.join(messages, node).outerjoin(blobs, blob))
    given: Given = defaultdict(list)
    for row in conn.execute(query.where(c.tenant == tenant, whose).order_by(c.exchange_id, c.index)):
        choice = Choice(
            index=row.position,
            message=json.loads(row.data),
            finish_reason=row.finish_reason,
            completion_ids=None if row.completion_ids is None else unpack_ids(row.completion_ids),
            behavior_logprobs=None if row.behavior_logprobs is None else unpack_floats(row.behavior_logprobs),
        )
        given[row.exchange_id].append(choice)
    return given
