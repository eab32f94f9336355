"""One store, several tenants."""

import json
from dataclasses import replace

import pytest
import sqlalchemy as sa

from nightschool.errors import StoreError
from nightschool.store.bodies import get_body
from nightschool.store.database import Store
from nightschool.store.exchanges import insert_exchange, load_exchange
from nightschool.store.schema import exchanges
from nightschool.store.splits import split_key


def insert(store, record):
    return store.write(lambda conn: insert_exchange(conn, store.tenant, record))


def test_a_view_writes_under_its_own_tenant_and_sees_nothing_of_the_others(store, make_record):
    acme = store.scoped("acme")
    theirs = insert(acme, make_record([{"role": "user", "content": "hi"}]))
    ours = insert(store, make_record([{"role": "user", "content": "hi"}]))
    with store.read() as conn:
        exchange = load_exchange(conn, "acme", theirs)
        assert exchange is not None
        assert exchange.tenant == "acme"
        assert load_exchange(conn, "default", theirs) is None
        assert load_exchange(conn, "acme", ours) is None
        assert split_key(conn, "acme") != split_key(conn, "default")


def test_the_same_tenant_is_the_same_view_and_leads_back(store):
    acme = store.scoped("acme")
    assert store.scoped("acme") is acme
    assert acme.scoped("default") is store
    assert store.scoped("default") is store


def test_closing_a_view_closes_nothing(place, make_record):
    with Store.open(place) as store:
        with store.scoped("acme") as acme:
            pass
        assert insert(acme, make_record([{"role": "user", "content": "hi"}]))
    with pytest.raises(StoreError, match="closed"):
        store.scoped("other")


def test_a_tenant_keeps_its_split_key(place):
    keys = []
    for _ in range(2):
        with Store.open(place) as store:
            acme = store.scoped("acme")
            keys.append(acme.write(lambda conn: split_key(conn, "acme")))
    assert keys[0] == keys[1]


def test_what_one_tenant_has_stored_another_has_not(store, make_record):
    """Equal long messages and tools, one after the other: each tenant keeps its own."""
    words = [{"role": "user", "content": "long " * 1000}]
    tools = ({"name": "look", "description": "up " * 1000},)
    body = json.dumps({"messages": words, "tools": tools}).encode()
    for name in ("default", "acme", "default"):
        view = store.scoped(name)
        exchange_id = insert(view, replace(make_record(words), tools=tools, request_body=body))
        with view.read() as conn:
            exchange = load_exchange(conn, name, exchange_id)
            this = (exchanges.c.tenant == name, exchanges.c.id == exchange_id)
            raw = get_body(conn, name, conn.execute(sa.select(exchanges.c.request_body).where(*this)).scalar_one())
        assert exchange is not None
        assert (exchange.messages, exchange.tools, raw) == (tuple(words), tools, body)
