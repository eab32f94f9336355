"""Every page over a Postgres database: the same answers as over a file."""

import pytest
import sqlalchemy as sa
from dashboard.conftest import BUILDERS, State
from dashboard.test_pages import LISTS, details
from starlette.applications import Starlette
from starlette.testclient import TestClient

from nightschool.dashboard.app import build_dashboard
from nightschool.store.database import Store
from nightschool.store.schema import meta
from nightschool.store.splits import META_KEY

pytestmark = pytest.mark.slow

ODD = ("/sessions?release=%00", "/sessions?q=%00a&has=text", "/feedback?q=%ED%A0%80", "/sessions?after=1e999,x")


class Served(State):
    """A state whose store is a database of the tests' own server, filled as `file` was."""

    def __init__(self, url: str, name: str, file: State) -> None:
        self.store = Store.open(url)
        with file.store.read() as conn:
            same = meta.c.key == META_KEY
            key = conn.scalar(sa.select(meta.c.value).where(same))
        self.store.write(lambda conn: conn.execute(sa.update(meta).where(same).values(value=key)))
        self.now = file.now
        self.ids = BUILDERS[name](self.store, file.now)
        self.client = TestClient(Starlette(routes=build_dashboard(self.store, dict)), follow_redirects=False)


@pytest.mark.parametrize("name", ["recorded", "nights", "hostile"])
def test_pages_answer_from_postgres_as_from_a_file(postgres, request, name):
    file: State = request.getfixturevalue(name)
    served = Served(postgres.store(), name, file)
    try:
        for path in [*LISTS, "/sessions?outcome=down&has=text&q=a", "/ledger?state=excluded&reason=text+only", *ODD]:
            reply = served.client.get(path)
            assert reply.status_code == 200, (path, reply.text[:500])
            bare, mark, query = path.partition("?")
            url = f"{'/index' if bare == '/' else bare}.json{mark}{query}"
            assert served.client.get(url).json()["answer"] == file.client.get(url).json()["answer"], path
        for path in details(served):
            assert served.client.get(path).status_code == 200, path
    finally:
        served.store.close()
