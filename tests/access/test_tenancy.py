"""The tenant is part of every query: read from the statements themselves."""

from __future__ import annotations

import gc
import importlib
import pkgutil
import time

import pytest
import sqlalchemy as sa
from dashboard import states
from sqlalchemy import event
from starlette.applications import Starlette
from starlette.testclient import TestClient
from tenancy import missing_tenant

import nightschool.store
from nightschool.access.retention import Wish, retain
from nightschool.dashboard.app import VIEWS, build_dashboard
from nightschool.store.database import Store
from nightschool.store.explain import explain
from nightschool.store.prepared import Prepared
from nightschool.store.schema import blobs, exchanges, runs, sessions, verdicts


def test_a_statement_without_a_tenant_is_seen():
    x, s = exchanges, sessions
    joined = sa.select(x.c.id).join(s, s.c.id == x.c.session_id)
    for free in (sa.select(x.c.id), sa.delete(x).where(x.c.id == "a"), joined.where(x.c.tenant == "t"), sa.update(s)):
        assert missing_tenant(free) is not None
    other = x.alias()
    exists = sa.exists().where(other.c.id == x.c.retry_of)
    assert missing_tenant(sa.select(x.c.id).where(x.c.tenant == "t", exists)) is not None
    assert missing_tenant(sa.select(x.c.id).where(x.c.tenant == "t", exists.where(other.c.tenant == "t"))) is None
    assert missing_tenant(joined.where(x.c.tenant == "t", s.c.tenant == x.c.tenant)) is None


def test_every_prepared_statement_names_its_tenant():
    for module in pkgutil.iter_modules(nightschool.store.__path__, "nightschool.store."):
        importlib.import_module(module.name)
    gc.unfreeze()  # a gateway of an earlier test froze what was there
    prepared = [value for value in gc.get_objects() if type(value) is Prepared]  # asking some for their class warns
    assert len(prepared) > 10
    wrong = [f"{found}: {p.statement}" for p in prepared if (found := missing_tenant(p.statement))]
    assert wrong == []


@pytest.fixture
def statements(tmp_path):
    """What is sent while pages are drawn, exchanges explained, recorded, judged, and deleted by age."""
    sent: dict[str, sa.ClauseElement] = {}

    def keep(_conn, statement, *_more) -> None:
        if isinstance(statement, sa.Select | sa.Update | sa.Delete | sa.CompoundSelect):
            sent.setdefault(str(statement), statement)

    with Store.open(tmp_path / "store.sqlite") as store:
        event.listen(store.engine, "before_execute", keep)
        states.two_nights(store, time.time())
        client = TestClient(Starlette(routes=build_dashboard(store, dict)), follow_redirects=False)
        with store.read() as conn:
            ids = {t.name: conn.scalar(sa.select(t.c.id).where(t.c.tenant == "default").limit(1)) for t in TABLES}
            explain(conn, "default", ids["exchanges"])
        for path, _ in VIEWS:
            kind = path.split("/")[1]
            for view in ("", "?view=tokens", "?view=raw"):
                client.get(path.replace("{id}", ids.get(kind) or "").replace("{agent:path}", states.AGENT) + view)
        retain(store, Wish(time.time() + 1e6), "me")
        with store.read() as conn:
            assert conn.scalar(sa.select(sa.func.count()).select_from(blobs).where(blobs.c.tenant == "default")) == 0
    return sent


TABLES = (sessions, exchanges, runs, verdicts)


def test_every_statement_that_is_sent_names_its_tenant(statements):
    assert len(statements) > 60
    assert [f"{found}: {text}" for text, s in statements.items() if (found := missing_tenant(s))] == []
