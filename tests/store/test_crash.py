"""What was acknowledged is stored, wherever the process dies."""

import os
import signal
import subprocess
import sys
import time

import pytest
import sqlalchemy as sa

from nightschool.store.database import Store
from nightschool.store.schema import blobs

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
