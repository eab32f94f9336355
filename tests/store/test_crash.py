"""What was acknowledged is stored, wherever the process dies."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import sqlalchemy as sa

from nightschool.store.database import Store
from nightschool.store.schema import blobs, exchanges

# Four threads write; each acknowledged hash is printed (one write call to a pipe each). After 20 the fail point is set.
PROGRAM = """
import os, sys, threading
from nightschool.store.blobs import put_blob
from nightschool.store.database import Store

store = Store.open(sys.argv[1])
acknowledged = 0

def write(name):
    global acknowledged
    n = 0
    while True:
        n += 1
        data = f"{name} {n}".encode()
        os.write(1, store.write(lambda conn: put_blob(conn, "default", data)).encode() + b"\\n")
        acknowledged += 1
        if acknowledged > 20:
            os.environ["NIGHTSCHOOL_FAILPOINT"] = sys.argv[2]

for name in range(4):
    threading.Thread(target=write, args=(name,)).start()
"""


def stored_and_acknowledged(path, output: bytes) -> tuple[set[str], set[str]]:
    with Store.open(path) as store, store.read() as conn:
        assert conn.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
        return set(conn.scalars(sa.select(blobs.c.hash))), set(output.decode().split())


@pytest.mark.parametrize("point", ["store.before_commit", "store.after_commit"])
def test_killed_around_a_commit(tmp_path, point):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "s.sqlite"), point]
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert done.returncode == 137, done.stderr
    stored, acknowledged = stored_and_acknowledged(tmp_path / "s.sqlite", done.stdout)
    assert len(acknowledged) > 20
    # Committed and not yet told: at most one write of each of the four threads. A thread may still be about to tell
    # of the commit before when the next one dies, so before_commit leaves some too; after_commit always does.
    assert acknowledged <= stored
    assert len(stored - acknowledged) <= 4
    if point == "store.after_commit":
        assert acknowledged < stored


def test_killed_at_any_moment(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "s.sqlite"), ""]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        first = process.stdout.readline()
        time.sleep(0.2)
        os.kill(process.pid, signal.SIGKILL)
        output = first + process.stdout.read()
    stored, acknowledged = stored_and_acknowledged(tmp_path / "s.sqlite", output)
    assert acknowledged <= stored
    assert len(stored - acknowledged) <= 4


def test_a_disk_that_is_full_stops_no_reply(tmp_path):
    """The file may not grow past what it is: recording fails and is counted, the recorder goes on, and so it does
    when there is room again."""
    program = """
import json, resource, signal, sys
from nightschool.gateway.capture import Capture, Stopwatch
from nightschool.gateway.recorder import Recorder
from nightschool.store.database import Store
from nightschool.store.records import Caller

def capture(number, text):
    fields = {"model": "shop", "messages": [{"role": "user", "content": text}]}
    body = json.dumps(fields).encode()
    made = Capture(f"id-{number}", lambda: Caller("shop"), body, fields, Stopwatch(), "base")
    made.http_status, made.reply = 200, [b'{"choices": []}']
    return made

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with Store.open(sys.argv[1]) as store:
    recorder = Recorder(store, 2**26)
    first = recorder.submit(capture(0, "small")).result(30)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, resource.RLIM_INFINITY))
    full = [recorder.submit(capture(1 + n, "".join(map(str, range(n, n + 100_000))))).result(30) for n in range(3)]
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    after = recorder.submit(capture(9, "small again")).result(30)
    recorder.close()
    print(json.dumps([first, full, after, recorder.counts()]))
"""
    command = [sys.executable, "-c", program, str(tmp_path / "s.sqlite")]
    done = subprocess.run(command, capture_output=True, timeout=120, text=True)
    assert done.returncode == 0, done.stderr
    first, full, after, counts = json.loads(done.stdout)
    assert (first, after) == (True, True)
    assert False in full
    assert counts == {"stored": 2 + full.count(True), "lost": full.count(False), "queue": 0}
    with Store.open(tmp_path / "s.sqlite") as store, store.read() as conn:
        assert conn.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
        assert conn.scalar(sa.select(sa.func.count()).select_from(exchanges)) == counts["stored"]
