import subprocess
import sys
import time

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from nightschool.errors import StoreError
from nightschool.store import migrate, schema
from nightschool.store.blobs import get_blob, put_blob
from nightschool.store.database import Store, connect


def test_the_migrations_make_the_schema(store):
    with store.engine.connect() as conn:
        context = MigrationContext.configure(conn, opts={"compare_type": True})
        assert compare_metadata(context, schema.metadata) == []
    inspector = sa.inspect(store.engine)
    for table in schema.metadata.sorted_tables:
        # alembic does not compare these
        assert inspector.get_pk_constraint(table.name)["constrained_columns"] == list(table.primary_key.columns.keys())


def test_the_newest_revision_is_the_head():
    config = Config()
    config.set_main_option("script_location", str(migrate.Path(migrate.__file__).parent / "migrations"))
    assert ScriptDirectory.from_config(config).get_heads() == [migrate.HEAD]


def test_opening_again_keeps_what_is_stored(tmp_path):
    with Store.open(tmp_path / "s.sqlite") as store:
        stored = store.write(lambda conn: put_blob(conn, "default", b"kept"))
    with Store.open(tmp_path / "s.sqlite") as store, store.read() as conn:
        assert get_blob(conn, "default", stored) == b"kept"


def test_an_empty_revision_is_upgraded_and_foreign_data_kept(tmp_path):
    engine = connect(tmp_path / "s.sqlite")
    with engine.execution_options(writing=True).begin() as conn:
        conn.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
        conn.exec_driver_sql("CREATE TABLE notes (text TEXT)")
        conn.exec_driver_sql("INSERT INTO notes VALUES ('mine')")
    engine.dispose()
    with Store.open(tmp_path / "s.sqlite") as store, store.read() as conn:
        assert conn.exec_driver_sql("SELECT text FROM notes").scalar() == "mine"
        assert conn.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() == migrate.HEAD


def test_a_migration_that_fails_changes_nothing(tmp_path):
    engine = connect(tmp_path / "s.sqlite")
    with engine.execution_options(writing=True).begin() as conn:
        conn.exec_driver_sql("CREATE TABLE jobs (id TEXT)")  # the last one that the first revision makes
    with pytest.raises(StoreError, match="already exists"):
        Store.open(tmp_path / "s.sqlite")
    assert sa.inspect(engine).get_table_names() == ["jobs"]
    engine.dispose()


def test_a_store_of_a_newer_nightschool_is_refused_with_the_command_that_helps(tmp_path):
    with Store.open(tmp_path / "s.sqlite") as store:
        store.write(lambda conn: conn.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreError) as caught:
        Store.open(tmp_path / "s.sqlite")
    assert "newer Nightschool" in caught.value.what
    assert caught.value.next_step == "pip install --upgrade nightschool"


def test_what_is_no_database_is_refused(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to be looked at\n" * 50)
    with pytest.raises(StoreError, match="not a database"):
        Store.open(text)
    assert text.read_text().startswith("not a database")
    with pytest.raises(StoreError, match="unable to open"):
        Store.open(tmp_path)
    with pytest.raises(StoreError, match="cannot be opened"):
        Store.open(text / "store.sqlite")


def test_processes_that_open_at_once_agree(tmp_path):
    program = (
        "import sys; from nightschool.store.database import Store\n"
        "with Store.open(sys.argv[1]) as store, store.read() as conn:\n"
        "    print(conn.exec_driver_sql('SELECT value FROM meta').scalar())"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "new" / "s.sqlite")]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(4)]
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, outputs
    assert len({stdout for stdout, _ in outputs}) == 1
    assert {stderr for _, stderr in outputs} == {b""}


def test_a_store_at_head_opens_without_alembic(tmp_path):
    Store.open(tmp_path / "s.sqlite").close()
    program = (
        "import sys; from nightschool.store.database import Store\n"
        "Store.open(sys.argv[1]).close(); print('alembic' in sys.modules)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "s.sqlite")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"
    started = time.thread_time()
    Store.open(tmp_path / "s.sqlite").close()
    assert time.thread_time() - started < 0.15
