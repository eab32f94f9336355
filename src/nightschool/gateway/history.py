"""What was said before a response that a request names instead of resending it."""

from __future__ import annotations

import asyncio

import sqlalchemy as sa

from nightschool.gateway.dialects.sse import load_json
from nightschool.gateway.recorder import Recorder
from nightschool.gateway.replies import refuse
from nightschool.store.attachments import restore
from nightschool.store.bodies import get_body
from nightschool.store.database import Store
from nightschool.store.exchanges import find_exchange, load_exchange
from nightschool.store.schema import exchanges
from nightschool.types import Json

WAIT_S = 2.0  # for a reply that the client has already, but the store not yet


async def earlier_messages(store: Store, recorder: Recorder, response_id: str) -> tuple[Json, ...]:
    """The conversation up to and with the reply known by `response_id`, without its instructions.

    Raises: RequestRefused (400) when no such reply was recorded.
    """
    found = await asyncio.to_thread(_load, store, response_id)
    if found is None and await asyncio.to_thread(recorder.drain, WAIT_S):
        found = await asyncio.to_thread(_load, store, response_id)
    if found is None:
        raise refuse(
            400,
            "previous_response_not_found",
            "The request was not translated for the engine.",
            f"No response {response_id[:200]} was recorded here.",
            "Send the conversation itself as `input`.",
        )
    return found


def _load(store: Store, response_id: str) -> tuple[Json, ...] | None:
    with store.read() as conn:
        key = find_exchange(conn, store.tenant, response_id)
        exchange = load_exchange(conn, store.tenant, key) if key else None
        if exchange is None or not exchange.choices:
            return None
        named = (exchanges.c.tenant == store.tenant, exchanges.c.id == exchange.id)
        body = conn.execute(sa.select(exchanges.c.request_body).where(*named)).scalar_one()
        instructed = bool(load_json(get_body(conn, store.tenant, body)).get("instructions"))
        said = [*exchange.messages[instructed:], exchange.choices[0].message]
        return tuple(restore(conn, store.tenant, said))
