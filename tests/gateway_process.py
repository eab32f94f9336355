"""A gateway in a process of its own, for tests and benchmarks that kill it.

python gateway_process.py STATE STORE ENGINE DURABILITY
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ADMIN = "admin-secret"


@contextmanager
def gateway_process(
    state: Path, store: Path | str, engine: str, durability: str, fail_point: str = ""
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The process and the port it answers at; it is killed at the end, if not before."""
    words = [sys.executable, __file__, str(state), str(store), engine, durability]
    environment = {**os.environ, "NIGHTSCHOOL_FAILPOINT": fail_point}
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def main(state: str, place: str, engine: str, durability: str) -> None:
    from nightschool.access.identity import Access
    from nightschool.gateway.app import build_app
    from nightschool.gateway.server import make_server
    from nightschool.gateway.settings import GatewaySettings
    from nightschool.store.database import Store
    from nightschool.upstream.client import EngineClient

    listener = socket.create_server(("127.0.0.1", 0))
    with Store.open(place) as store:
        settings = GatewaySettings(Path(state), "shop", Access(ADMIN), durability=durability)
        print(listener.getsockname()[1], flush=True)
        make_server(build_app(store, EngineClient(engine), settings), "127.0.0.1", 0).run(sockets=[listener])


if __name__ == "__main__":
    main(*sys.argv[1:])
