import random
import threading
import time
from concurrent.futures import wait

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError

from nightschool.errors import StoreError
from nightschool.store.blobs import get_blob, put_blob
from nightschool.store.database import Store
from nightschool.store.schema import blobs


def count_blobs(store) -> int:
    with store.read() as conn:
        return conn.scalar(sa.select(sa.func.count()).select_from(blobs)) or 0


def test_a_write_that_raises_is_rolled_back_alone(store):
    def broken(conn):
        put_blob(conn, "default", b"half done")
        raise KeyError("mine")

    gate = threading.Event()
    store.submit(lambda _conn: gate.wait(5))  # what follows waits together
    futures = [
        store.submit(lambda conn: put_blob(conn, "default", b"before")),
        store.submit(broken),
        store.submit(lambda conn: put_blob(conn, "default", b"after")),
    ]
    gate.set()
    wait(futures)
    assert isinstance(futures[1].exception(), KeyError)
    assert futures[0].exception() is None
    assert futures[2].exception() is None
    assert count_blobs(store) == 2


@pytest.mark.parametrize("ending", [KeyboardInterrupt, SystemExit])
def test_a_write_that_would_end_its_thread_takes_its_own_commit_along_and_no_more(store, ending):
    def ends(conn):
        put_blob(conn, "default", b"half done")
        raise ending

    store.writer.COMMIT_WINDOW_S = 5.0  # also on a slow machine both share a transaction
    gate = threading.Event()
    store.submit(lambda _conn: gate.wait(5))  # what follows waits together
    futures = [store.submit(lambda conn: put_blob(conn, "default", b"before")), store.submit(ends)]
    gate.set()
    for future in futures:
        with pytest.raises(StoreError, match=f"Nothing was written. {ending.__name__} ended it."):
            future.result(timeout=10)
    store.submit(lambda conn: put_blob(conn, "default", b"after")).result(timeout=10)
    assert count_blobs(store) == 1


def test_what_waits_together_is_committed_together_and_a_lone_write_does_not_wait(store):
    commits = []
    event.listen(store.engine, "commit", lambda conn: commits.append(1))
    store.writer.COMMIT_WINDOW_S = 5.0
    started = time.monotonic()
    store.write(lambda conn: put_blob(conn, "default", b"alone"))
    assert time.monotonic() - started < 2.0
    assert len(commits) == 1
    gate = threading.Event()
    futures = [store.submit(lambda _conn: gate.wait(5))]
    futures += [store.submit(lambda conn, n=n: put_blob(conn, "default", b"%d" % n)) for n in range(20)]
    gate.set()
    wait(futures)
    assert len(commits) == 2


def test_the_window_is_total(store):
    commits = []
    event.listen(store.engine, "commit", lambda conn: commits.append(1))
    store.writer.COMMIT_WINDOW_S = 0.05
    futures = [store.submit(lambda _conn: time.sleep(0.03)) for _ in range(6)]
    wait(futures)
    # two writes of 30 ms fill a window of 50 ms; a window that began anew with each would hold all six
    assert 3 <= len(commits) <= 6


def test_a_full_disk_fails_the_write_and_leaves_the_writer_alive(file_store):
    store = file_store
    big = random.Random(1).randbytes(200_000)

    def limit(conn, pages: int):
        return conn.exec_driver_sql(f"PRAGMA max_page_count={pages}")

    store.write(lambda conn: limit(conn, 1))  # SQLite takes the present size instead: no page more
    gate = threading.Event()
    store.submit(lambda _conn: gate.wait(5))
    # the small write fits, but the full disk ends the transaction that it shares with the big one
    together = [
        store.submit(lambda conn: conn.exec_driver_sql("UPDATE meta SET value = value").rowcount),
        store.submit(lambda conn: put_blob(conn, "default", big)),
    ]
    gate.set()
    wait(together)
    with pytest.raises(StoreError, match="full"):
        together[1].result()
    if together[0].exception() is None:
        assert together[0].result() == 1
    store.write(lambda conn: limit(conn, 100_000))
    stored = store.write(lambda conn: put_blob(conn, "default", big))
    with store.read() as conn:
        assert get_blob(conn, "default", stored) == big
        assert conn.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"


def test_nothing_is_acknowledged_that_a_full_disk_took_back(file_store):
    store = file_store
    limit = "PRAGMA max_page_count={}"
    store.write(lambda conn: conn.exec_driver_sql(limit.format(1)))
    gate = threading.Event()
    store.submit(lambda _conn: gate.wait(5))
    noise = [random.Random(n).randbytes(250) for n in range(80)]  # nothing that packing makes small
    futures = [store.submit(lambda conn, data=data: put_blob(conn, "default", data)) for data in noise]
    gate.set()
    wait(futures)
    acknowledged = {f.result() for f in futures if f.exception() is None}
    assert len(acknowledged) < 80
    with store.read() as conn:
        assert set(conn.scalars(sa.select(blobs.c.hash))) == acknowledged


def test_reading_cannot_write(store):
    with store.read() as conn, pytest.raises(DBAPIError, match=r"read-?only"):
        put_blob(conn, "default", b"lost")
    store.write(lambda conn: put_blob(conn, "default", b"kept"))
    assert count_blobs(store) == 1


def test_a_read_is_one_snapshot_and_does_not_stop_the_writer(store):
    with store.read() as conn:
        assert conn.scalar(sa.select(sa.func.count()).select_from(blobs)) == 0
        store.write(lambda inner: put_blob(inner, "default", b"new"))
        assert conn.scalar(sa.select(sa.func.count()).select_from(blobs)) == 0
    assert count_blobs(store) == 1


def test_two_stores_on_one_database_take_turns(place):
    with Store.open(place) as one, Store.open(place) as two:
        futures = [
            store.submit(lambda conn, n=n: put_blob(conn, "default", b"%d" % n))
            for n, store in enumerate([one, two] * 50)
        ]
        for future in futures:
            future.result()
        assert count_blobs(one) == 100


def test_many_readers_do_not_starve_the_writer(store):
    connections = [store.read() for _ in range(30)]
    for connection in connections:
        connection.__enter__()
    store.submit(lambda conn: put_blob(conn, "default", b"x")).result(timeout=5)
    for connection in connections:
        connection.__exit__(None, None, None)


def test_a_closed_store_refuses_writes_and_has_kept_what_it_took(place):
    store = Store.open(place)
    futures = [store.submit(lambda conn, n=n: put_blob(conn, "default", b"%d" % n)) for n in range(50)]
    store.close()
    assert all(future.done() and future.exception() is None for future in futures)
    with pytest.raises(StoreError, match="closed"):
        store.write(lambda conn: None)
    store.close()


def test_a_queued_write_cannot_be_cancelled(store):
    gate = threading.Event()
    store.submit(lambda _conn: gate.wait(5))
    future = store.submit(lambda conn: put_blob(conn, "default", b"x"))
    assert not future.cancel()
    gate.set()
    future.result(timeout=5)


@pytest.fixture
def server_store(new_place, tmp_path):
    with new_place("postgres", tmp_path) as place, Store.open(place) as store:
        yield store


def end_connections(store: Store) -> None:
    """What a restart of the server does to everybody who is connected."""
    others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
    with store.engine.connect() as conn:
        conn.exec_driver_sql(f"{others} AND pid <> pg_backend_pid()")


@pytest.mark.slow
def test_a_server_that_was_restarted_between_two_writes_costs_none(server_store):
    server_store.write(lambda conn: put_blob(conn, "default", b"before"))
    end_connections(server_store)
    server_store.write(lambda conn: put_blob(conn, "default", b"after"))
    assert count_blobs(server_store) == 2


@pytest.mark.slow
def test_a_server_that_is_lost_half_way_takes_the_whole_transaction_and_no_more(server_store):
    def lost(conn):
        put_blob(conn, "default", b"lost")
        end_connections(server_store)
        put_blob(conn, "default", b"never sent")

    server_store.writer.COMMIT_WINDOW_S = 5.0  # also on a slow machine all of these share a transaction
    gate = threading.Event()
    server_store.submit(lambda _conn: gate.wait(5))
    together = [
        server_store.submit(lambda conn: put_blob(conn, "default", b"with it")),
        server_store.submit(lost),
        server_store.submit(lambda conn: put_blob(conn, "default", b"or after it")),
    ]
    gate.set()
    wait(together)
    with pytest.raises(StoreError, match="terminat"):
        together[0].result()
    assert together[1].exception() is not None
    server_store.write(lambda conn: put_blob(conn, "default", b"next"))
    told = [future for future in together if future.exception() is None]
    assert count_blobs(server_store) == 1 + len(told)


def test_bytes_and_nulls_are_stored_as_they_are(file_store):
    values = (None, b"", b"\0a", "", 0)
    with file_store.read() as conn:
        assert tuple(conn.exec_driver_sql("SELECT ?, ?, ?, ?, ?", values).one()) == values
        kinds = conn.exec_driver_sql("SELECT " + ", ".join(["typeof(?)"] * 5), values).one()
    assert tuple(kinds) == ("null", "blob", "blob", "text", "integer")
