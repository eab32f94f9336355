import json
import threading
import time

import pytest
import sqlalchemy as sa
from databases import ON_BOTH

from nightschool.errors import ConfigError, StoreError
from nightschool.gateway import recorder as recorder_module
from nightschool.gateway.capture import Capture, Stopwatch
from nightschool.gateway.recorder import Recorder
from nightschool.store.bodies import get_body
from nightschool.store.exchanges import Caller, load_exchange
from nightschool.store.schema import exchanges

DATABASES = ON_BOTH

ASK = {"model": "shop", "messages": [{"role": "user", "content": "Hi"}]}


def capture(number: int, reply: bytes = b'{"choices": []}') -> Capture:
    fields = {"model": "shop", "messages": [{"role": "user", "content": "Hi"}]}
    made = Capture(f"id-{number}", lambda: Caller("shop"), json.dumps(fields).encode(), fields, Stopwatch(), "base")
    made.http_status, made.reply = 200, [reply]
    return made


def health(gateway) -> dict:
    return json.loads(gateway.send("GET", "/health")[2])


def test_replies_go_on_when_the_store_refuses(gateway, monkeypatch):
    def refuse(write):
        raise StoreError("Nothing was written.", "The disk is full.", "nightschool doctor")

    assert health(gateway) == {
        "status": "ok",
        "engine": "reachable",
        "recording": {"stored": 0, "lost": 0, "queue": 0},
        "refused": {},
    }
    monkeypatch.setattr(gateway.store, "submit", refuse)
    for stream in (False, True):
        assert gateway.chat(ASK | {"stream": stream})[0] == 200
    until = time.monotonic() + 5
    while health(gateway)["recording"]["lost"] < 2 and time.monotonic() < until:
        time.sleep(0.02)
    assert health(gateway)["status"] == "degraded"
    assert health(gateway)["recording"] == {"stored": 0, "lost": 2, "queue": 0}


def test_aliases_serve_on_when_the_store_cannot_be_read(gateway, monkeypatch):
    assert gateway.chat(ASK)[0] == 200

    def broken():
        raise sa.exc.OperationalError("select", {}, Exception("disk I/O error"))

    monkeypatch.setattr(gateway.store, "read", broken)
    time.sleep(0.25)
    assert gateway.chat(ASK)[0] == 200


def test_a_reply_no_parser_foresaw_is_kept_as_bytes_and_never_trains(gateway):
    gateway.engine.raw_reply = b'{"choices": [3], "id": "odd"}'
    status, headers, body = gateway.chat(ASK)
    assert (status, body) == (200, gateway.engine.raw_reply)
    row = gateway.row(headers["x-nightschool-exchange"])
    assert (row.status, row.fidelity, row.training_allowed) == ("error", "text_only", False)
    assert row.error.startswith("The reply has another shape")


def test_what_derivation_did_not_foresee_is_recorded_as_bytes_alone(store, monkeypatch):
    def broken(capture):
        raise ZeroDivisionError("nobody thought of this")

    monkeypatch.setattr(recorder_module, "derive_record", broken)
    recorder = Recorder(store, 2**20)
    outcome = recorder.submit(capture(1))
    recorder.close()
    assert outcome.result(0) is True
    with store.read() as conn:
        [row] = conn.execute(exchanges.select()).all()
        assert get_body(conn, "default", row.reply_body) == b'{"choices": []}'
    assert row.error == "It could not be read (ZeroDivisionError: nobody thought of this)."
    assert (row.status, row.training_allowed, row.prompt_message) == ("error", False, None)


def test_a_record_the_store_cannot_take_whole_is_stored_bare(store, monkeypatch):
    insert = recorder_module.insert_exchanges

    def picky(conn, tenant, records):
        if any(record.id == "id-1" and record.messages for record in records):
            raise ValueError("cannot take it")
        return insert(conn, tenant, records)

    monkeypatch.setattr(recorder_module, "insert_exchanges", picky)
    recorder = Recorder(store, 2**20)
    outcomes = [recorder.submit(capture(number)) for number in range(3)]  # one batch
    recorder.close()
    assert [outcome.result(0) for outcome in outcomes] == [True, True, True]
    assert recorder.counts() == {"stored": 3, "lost": 0, "queue": 0}
    with store.read() as conn:
        rows = conn.execute(sa.select(exchanges.c.id, exchanges.c.prompt_message.is_not(None))).all()
    assert sorted(rows) == [("id-0", True), ("id-1", False), ("id-2", True)]


def test_queue_is_bounded_in_bytes_and_the_loss_is_counted(store):
    gate = threading.Event()
    store.submit(lambda conn: gate.wait(10))  # the writer is busy
    one = capture(0).size_bytes
    recorder = Recorder(store, one * 3)
    for number in range(5):
        recorder.submit(capture(number))
    assert recorder.counts() == {"stored": 0, "lost": 2, "queue": 3}
    gate.set()
    recorder.close()
    assert recorder.counts() == {"stored": 3, "lost": 2, "queue": 0}
    assert recorder.submit(capture(9)).result(0) is False  # after closing: counted, no exception
    assert recorder.counts()["lost"] == 3
    with store.read() as conn:
        assert load_exchange(conn, "default", "id-2") is not None


@pytest.mark.parametrize("streamed", [False, True])
def test_before_reply_the_last_byte_waits_for_the_commit(open_gateway, streamed):
    gateway = open_gateway(durability="before_reply")
    go = threading.Event()
    gateway.store.submit(lambda conn: go.wait(10))  # the writer is busy
    with gateway.client() as client:
        chunks: list = []

        def read() -> None:
            reply = client.chat.completions.create(**ASK, stream=streamed)
            chunks.extend(reply if streamed else [reply])
            chunks.append("end")

        reader = threading.Thread(target=read)
        reader.start()
        until = time.monotonic() + 5
        while streamed and len(chunks) < 3 and time.monotonic() < until:  # all but the end comes at once
            time.sleep(0.01)
        time.sleep(0.3)
        assert len(chunks) == (3 if streamed else 0)
        go.set()
        reader.join(10)
    assert chunks[-1] == "end"
    with gateway.store.read() as conn:  # no waiting: it is there
        assert conn.scalar(sa.select(sa.func.count()).select_from(exchanges)) == 1


def test_an_unknown_durability_is_refused(open_gateway):
    with pytest.raises(ConfigError, match="is no mode"):
        open_gateway(durability="sometimes")
