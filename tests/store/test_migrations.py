import json
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from nightschool.errors import StoreError
from nightschool.store import database, migrate, schema
from nightschool.store.blobs import get_blob, put_blob
from nightschool.store.bodies import get_body
from nightschool.store.database import Store, connect, connect_server
from nightschool.store.exchanges import find_exchange, insert_exchange, load_exchange
from nightschool.types import Json


def test_the_migrations_make_the_schema(bare_place):
    with Store.open(bare_place) as store:
        _compare(store)


def _compare(store: Store) -> None:
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


def test_opening_again_keeps_what_is_stored(bare_place):
    with Store.open(bare_place) as store:
        stored = store.write(lambda conn: put_blob(conn, "default", b"kept"))
    with Store.open(bare_place) as store, store.read() as conn:
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


def test_a_store_of_a_newer_nightschool_is_refused_with_the_command_that_helps(place):
    with Store.open(place) as store:
        store.write(lambda conn: conn.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreError) as caught:
        Store.open(place)
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


def test_bodies_and_choices_lie_in_the_order_of_their_keys(file_store):
    with file_store.read() as conn:
        names = "SELECT tbl_name FROM sqlite_master WHERE type = 'index' AND tbl_name IN ('bodies', 'choices')"
        assert conn.exec_driver_sql(names).all() == []
        # their primary keys are the tables
        for table in ("bodies", "choices"):
            plan = conn.exec_driver_sql(f"EXPLAIN QUERY PLAN SELECT * FROM {table} WHERE tenant = 'default'").all()
            assert "USING PRIMARY KEY (tenant=?)" in plan[0][3]


def write_earlier(place: Path | str, revision: str, folder: Path) -> None:
    """A store that an earlier version wrote (`earlier/`); on a server with the tables that it made there."""
    path = place if isinstance(place, Path) else folder / "earlier.sqlite"
    with sqlite3.connect(path) as raw:
        raw.executescript((Path(__file__).parent / "earlier" / f"{revision}.sql").read_text())
    raw.close()
    if isinstance(place, Path):
        return
    old, new, tables = connect(path), connect_server(place), sa.MetaData()
    config = Config()
    config.set_main_option("script_location", str(Path(migrate.__file__).parent / "migrations"))
    with new.execution_options(writing=True).begin() as conn:
        config.attributes["connection"] = conn
        command.upgrade(config, revision)
        tables.reflect(conn)
        with old.connect() as file:
            for table in (table for name, table in tables.tables.items() if name != "alembic_version"):
                for row in file.execute(sa.select(table)).mappings():
                    conn.execute(table.insert(), {name: value for name, value in row.items() if value is not None})
    old.dispose()
    new.dispose()


@pytest.mark.parametrize("revision", ["0001", "0002"])
def test_an_earlier_store_is_converted_whole(bare_place, tmp_path, revision):
    """Seven exchanges, each built as in `history` below."""
    path = bare_place
    write_earlier(path, revision, tmp_path)
    look_up = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": '{"order": 7}'}}
    tools = ({"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}},)
    history: list[Json] = [{"role": "system", "content": "Answer for the shop."}]
    with Store.open(path) as store, store.read() as conn:
        for turn in range(6):
            question = f"Question {turn}, said at some length so that it is worth sharing."
            history.append({"role": "user", "content": question})
            reply: Json = {"role": "assistant", "content": f"Answer {turn}."}
            if turn == 2:
                reply = {"role": "assistant", "content": None, "tool_calls": [look_up]}
            exchange = load_exchange(conn, "default", f"01900000-0000-7000-8000-{turn:012d}")
            assert exchange is not None
            assert (exchange.messages, exchange.choices[0].message) == (tuple(history), reply)
            assert (exchange.tools, exchange.prompt_ids) == (tools, tuple(range(3 + 4 * turn)))
            row = conn.execute(sa.select(schema.exchanges).where(schema.exchanges.c.id == exchange.id)).one()
            body = json.dumps({"model": "shop", "messages": history, "tools": tools}).encode()
            assert get_body(conn, "default", row.request_body) == body
            assert json.loads(get_body(conn, "default", row.reply_body or ""))["id"] == f"up-{turn}"
            history.append(reply)
            if turn == 2:
                history.append({"role": "tool", "tool_call_id": "c", "content": "long result " * 200})
        odd = load_exchange(conn, "default", "01900000-0000-7000-8000-000000000099")
        assert odd is not None
        assert (odd.messages, odd.status) == ((), "error")
        assert find_exchange(conn, "default", "ticket") == odd.id
        if isinstance(path, Path):
            assert conn.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"


def test_a_conversation_goes_on_in_a_converted_store(bare_place, tmp_path, make_record):
    path = bare_place
    write_earlier(path, "0002", tmp_path)
    with Store.open(path) as store:
        with store.read() as conn:
            last = load_exchange(conn, "default", f"01900000-0000-7000-8000-{5:012d}")
            num_messages = conn.scalar(sa.select(sa.func.count()).select_from(schema.messages))
        assert last is not None
        more = make_record([*last.messages, last.choices[0].message, {"role": "user", "content": "And?"}], "So.")
        store.write(lambda conn: insert_exchange(conn, "default", more))
        with store.read() as conn:
            found = load_exchange(conn, "default", more.id)
            after = conn.scalar(sa.select(sa.func.count()).select_from(schema.messages))
    assert found is not None
    assert (found.session_id, found.parent_exchange_id) == (last.session_id, last.id)
    assert after == (num_messages or 0) + 2  # the question and its answer


@pytest.mark.slow
def test_a_long_upgrade_is_waited_for(postgres, monkeypatch):
    """Two gateways start at once on a large store: the second one waits longer than any write would."""
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.5)
    url = postgres.database()
    engine = connect_server(url)
    upgrading = threading.Event()

    def upgrade() -> None:
        with engine.execution_options(writing=True).begin():
            upgrading.set()
            time.sleep(2)

    other = threading.Thread(target=upgrade)
    other.start()
    assert upgrading.wait(10)
    with Store.open(url) as store:
        other.join()
        with engine.execution_options(writing=True).begin(), pytest.raises(StoreError, match="lock timeout"):
            store.write(lambda conn: None)
    engine.dispose()
    postgres.drop(url)


def test_what_earlier_rows_mean_for_training_is_derived(bare_place, tmp_path):
    """Supports come from samplers, marks from flags; several rows share one text of each."""
    write_earlier(bare_place, "0002", tmp_path)
    usual = {"temperature": 1.0, "top_p": 1.0, "top_k": None, "min_p": None, "constraints": None}
    usual |= {"presence_penalty": 0.0, "frequency_penalty": 0.0, "seed": None}
    said = {
        0: (usual | {"temperature": 0.0}, None, "greedy decoding", None),
        1: (usual | {"top_p": 0.9}, ["seen", "redacted"], "truncated support", "redacted"),
        2: (usual | {"top_p": 0.9}, ["seen", "redacted"], "truncated support", "redacted"),
        3: (
            usual | {"constraints": {"json": True}},
            ["suspect_empty_args"],
            "constrained decoding",
            "suspect_empty_args",
        ),
        4: (usual, [], "full", None),
    }
    engine = connect(bare_place) if isinstance(bare_place, Path) else connect_server(bare_place)
    with engine.execution_options(writing=True).begin() as conn:
        for turn, (sampler, flags, _, _) in said.items():
            values = (
                f"sampler = '{json.dumps(sampler)}', flags = {'NULL' if flags is None else repr(json.dumps(flags))}"
            )
            raw = conn.connection.dbapi_connection
            raw.execute(f"UPDATE exchanges SET {values} WHERE id = '01900000-0000-7000-8000-{turn:012d}'")
    engine.dispose()
    with Store.open(bare_place) as store, store.read() as conn:
        x = schema.exchanges.c
        rows = {row.id: (row.support, row.mark) for row in conn.execute(sa.select(x.id, x.support, x.mark))}
        exchange = load_exchange(conn, "default", f"01900000-0000-7000-8000-{1:012d}")
    for turn, (_, _, support, mark) in said.items():
        assert rows[f"01900000-0000-7000-8000-{turn:012d}"] == (support, mark)
    assert exchange is not None
    assert exchange.sampler.top_p == 0.9
