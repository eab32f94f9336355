"""Bring a database's schema up to date. One lock and one SELECT when it already is."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import DatabaseError, OperationalError

from nightschool.errors import StoreError
from nightschool.store.lock import lock_file

HEAD = "0021"  # newest revision under migrations/versions


def upgrade(engine: sa.Engine, path: Path) -> None:
    """Upgrade the file at `path`, opened as `engine`, to `HEAD`.

    Edge: two processes at once: one upgrades, the other waits for it. Killed half-way, nothing has changed.

    Raises:
        StoreError: not a database, not one of Nightschool's, or written by a newer Nightschool.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with lock_file(path.with_name(path.name + ".lock")):
            if _revision(engine) != HEAD:
                _run(engine, path)
    except (DatabaseError, sqlite3.Error, OSError) as error:
        cause = error.orig if isinstance(error, DatabaseError) else error
        raise StoreError(
            f"The store {path} cannot be opened.",
            f"{cause}.",
            "nightschool doctor, or set NIGHTSCHOOL_STATE to another folder",
        ) from error


def _revision(engine: sa.Engine) -> str | None:
    with engine.connect() as connection:
        try:
            return connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
        except OperationalError as error:
            if "no such table" in str(error.orig):
                return None
            raise


def _run(engine: sa.Engine, path: Path) -> None:
    # late: alembic takes longer to import than a store at HEAD takes to open
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    try:
        with engine.execution_options(writing=True).begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except CommandError as error:
        raise StoreError(
            f"The store {path} was written by a newer Nightschool.", f"{error}.", "pip install --upgrade nightschool"
        ) from error
