"""Bring a database's schema up to date. One lock and one SELECT when it already is."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import DatabaseError

from nightschool.errors import StoreError
from nightschool.store.failpoints import fail_point
from nightschool.store.lock import lock_file

HEAD = "0090"  # newest revision under migrations/versions


WRITER_LOCK = 0x6E69676874  # of a Postgres database: who holds it may write


def upgrade(engine: sa.Engine, path: Path) -> None:
    """Upgrade the file at `path`, opened as `engine`, to `HEAD`.

    Edge: two processes at once: one upgrades, the other waits for it. Killed half-way, nothing has changed.

    Raises:
        StoreError: not a database, not one of Nightschool's, or written by a newer Nightschool.
    """
    with _told(str(path), (DatabaseError, sqlite3.Error, OSError)):
        path.parent.mkdir(parents=True, exist_ok=True)
        with lock_file(path.with_name(path.name + ".lock")):
            if _revision(engine) != HEAD:
                _run(engine, str(path))


def upgrade_server(engine: sa.Engine) -> None:
    """The same for a Postgres database. Whoever upgrades holds its writer's lock; others wait for as long as it takes.

    Raises:
        StoreError: it cannot be reached, may not be written, or was written by a newer Nightschool.
    """
    name = engine.url.render_as_string(hide_password=True)
    with _told(name, (DatabaseError, OSError)):
        if _revision(engine) != HEAD:
            _run(engine, name)


@contextmanager
def _told(name: str, errors: tuple[type[Exception], ...]) -> Iterator[None]:
    try:
        yield
    except errors as error:
        cause = str(error.orig if isinstance(error, DatabaseError) else error).strip().splitlines()
        raise StoreError(
            f"The store {name} cannot be opened.",
            f"{cause[0].rstrip('.') if cause else type(error).__name__}.",
            "nightschool doctor, or set NIGHTSCHOOL_STATE to another folder",
        ) from error


def _revision(engine: sa.Engine) -> str | None:
    with engine.connect() as connection:
        if not sa.inspect(connection).has_table("alembic_version"):
            return None
        return connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()


def _run(engine: sa.Engine, name: str) -> None:
    # late: alembic takes longer to import than a store at HEAD takes to open
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    try:
        with engine.execution_options(writing=True, patient=True).begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            fail_point("migrate.before_commit")
        fail_point("migrate.after_commit")
    except CommandError as error:
        raise StoreError(
            f"The store {name} was written by a newer Nightschool.", f"{error}.", "pip install --upgrade nightschool"
        ) from error
