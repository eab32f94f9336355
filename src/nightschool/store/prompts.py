"""Prompt ids as a delta to the exchange that is continued.

An exchange's context is its prompt ids followed by the completion of its choice 0. A prompt usually begins
with the context of the exchange it continues; then only the rest is stored. Where it does not, the branch
forked and the whole list is stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from nightschool.store.records import Record
from nightschool.store.schema import choices, exchanges
from nightschool.store.sessions import Parent
from nightschool.store.vectors import pack_ids

ID_BYTES = 4


def prompt_columns(record: Record, parent: Parent | None) -> dict[str, Any]:
    """What the exchange's row says of its prompt. The parent's context is compared by hash, not loaded."""
    if record.prompt_ids is None:
        return {"prompt_prefix_len": 0}
    packed = pack_ids(record.prompt_ids)
    shared = 0
    if parent is not None and parent.num_context_tokens is not None:
        size = parent.num_context_tokens * ID_BYTES
        if size <= len(packed) and _hash(packed[:size]) == parent.context_hash:
            shared = parent.num_context_tokens
    columns = {
        "prompt_prefix_len": shared,
        "prompt_ids": packed[shared * ID_BYTES :],
        "num_prompt_tokens": len(record.prompt_ids),
    }
    completion = next((choice.completion_ids for choice in record.choices if choice.index == 0), None)
    if completion is not None:
        context = packed + pack_ids(completion)
        columns |= {"num_context_tokens": len(context) // ID_BYTES, "context_hash": _hash(context)}
    return columns


def load_prompt(conn: sa.Connection, tenant: str, exchange_id: str) -> bytes | None:
    """The packed prompt ids of one stored exchange."""
    return unfold_prompts(_ancestors(conn, tenant, exchange_id))[exchange_id]


def session_prompts(conn: sa.Connection, tenant: str, session_id: str) -> dict[str, bytes | None]:
    """The packed prompt ids of all exchanges of a session."""
    query = sa.select(*columns()).select_from(with_first_choice(tenant))
    mine = query.where(exchanges.c.tenant == tenant, exchanges.c.session_id == session_id)
    return unfold_prompts(conn.execute(mine.order_by(exchanges.c.started_at, exchanges.c.id)))


def unfold_prompts(rows: Iterable[sa.Row]) -> dict[str, bytes | None]:
    """Whole prompts by exchange id, from rows of `columns()` that hold every parent they build on."""
    by_id = {row.id: row for row in rows}
    prompts: dict[str, bytes | None] = {}
    for row in by_id.values():
        path = [row]
        while path[-1].prompt_prefix_len and path[-1].parent_exchange_id not in prompts:
            path.append(by_id[path[-1].parent_exchange_id])
        for step in reversed(path):
            begin = b""
            if step.prompt_prefix_len:
                begin = (prompts[step.parent_exchange_id] or b"") + by_id[step.parent_exchange_id].completion_ids
            prompts[step.id] = None if step.prompt_ids is None else begin + step.prompt_ids
    return prompts


def columns() -> tuple[sa.ColumnElement, ...]:
    return (
        exchanges.c.id,
        exchanges.c.parent_exchange_id,
        exchanges.c.prompt_prefix_len,
        exchanges.c.prompt_ids,
        choices.c.completion_ids,
    )


def with_first_choice(tenant: str) -> sa.Join:
    """Exchanges, each with its choice 0 where it has one."""
    first = sa.and_(choices.c.tenant == tenant, choices.c.exchange_id == exchanges.c.id, choices.c.index == 0)
    return exchanges.outerjoin(choices, first)


def _ancestors(conn: sa.Connection, tenant: str, exchange_id: str) -> list[sa.Row]:
    """The exchanges whose ids the prompt of `exchange_id` is made of, root first."""
    rows = sa.select(*columns(), sa.literal(0).label("hop")).select_from(with_first_choice(tenant))
    chain = rows.where(exchanges.c.tenant == tenant, exchanges.c.id == exchange_id).cte("chain", recursive=True)
    above = (
        sa.select(*columns(), chain.c.hop + 1)
        .select_from(with_first_choice(tenant).join(chain, exchanges.c.id == chain.c.parent_exchange_id))
        .where(exchanges.c.tenant == tenant, chain.c.prompt_prefix_len > 0)
    )
    chain = chain.union_all(above)
    return list(conn.execute(sa.select(chain).order_by(chain.c.hop.desc())))


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
