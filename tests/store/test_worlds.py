"""Placing an exchange reads as much of a store with ten million exchanges as of an empty one."""

import re

import pytest

from nightschool.store import foresight, worlds
from nightschool.store.exchanges import Caller, insert_exchange, load_exchange
from nightschool.types import Json

USER, MORE = {"role": "user", "content": "hi"}, {"role": "user", "content": "and?"}
REPLY = {"role": "assistant", "content": "hello"}


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (worlds.HOME, "sessions_external (tenant=? AND external_key=?)"),
        (worlds.HOME_BY_ID, "sqlite_autoindex_sessions_1 (tenant=? AND id=?)"),
        (worlds.FAILED, "exchanges_failed (tenant=? AND prompt_message=?)"),
        (worlds.REPLIED, "exchanges_match (tenant=? AND reply_match_hash=? AND system_hash=?)"),
        (worlds.REPLIED_ANYWHERE, "exchanges_match (tenant=? AND reply_match_hash=?)"),
        (worlds.REPLIED_WITHIN, "exchanges_session (tenant=? AND session_id=?)"),
        (worlds.GIVEN, "exchanges_match (tenant=? AND reply_match_hash=?)"),
        (worlds.CALLED, "exchanges_upstream (tenant=? AND upstream_id=?)"),
        (worlds.CALLED_BY_ID, "sqlite_autoindex_exchanges_1 (tenant=? AND id=?)"),
        (foresight.FAILURES, "exchanges_failed (tenant=? AND prompt_message=?)"),
        (foresight.REPLIES, "exchanges_match (tenant=? AND reply_match_hash=?)"),
        (foresight.NAMED, "sessions_external (tenant=? AND external_key=?)"),
        (foresight.BY_ID, "sqlite_autoindex_sessions_1 (tenant=? AND id=?)"),
    ],
)
def test_each_query_takes_the_index_that_is_meant_for_it(file_store, query, index):
    with file_store.read() as conn:
        sql = str(query.statement.compile(dialect=conn.dialect))
        plan = [row[3] for row in conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", (None,) * sql.count("?"))]
    first = next(line for line in plan if "USING" in line)
    assert re.sub("COVERING ", "", first).endswith(f"USING INDEX {index}"), plan
    assert not any(line.startswith("SCAN exchanges") or line.startswith("SCAN sessions") for line in plan)


@pytest.fixture
def insert(store, make_record):
    def insert(messages: list[Json], caller: Caller) -> str:
        record = make_record(messages, "hello", caller)
        store.write(lambda conn: insert_exchange(conn, "default", record))
        return record.id

    return insert


def test_a_greeting_that_everybody_begins_with_parts_nobody_from_a_named_session(store, insert):
    mine = insert([USER], Caller("shop", session="mine"))
    for number in range(worlds.NUM_LOOKED_AT + 1):
        insert([USER], Caller("shop", session=f"other {number}"))
    later = insert([USER, REPLY, MORE], Caller("shop", session="mine"))
    with store.read() as conn:
        assert load_exchange(conn, "default", later).parent_exchange_id == mine
