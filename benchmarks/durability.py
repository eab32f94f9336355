"""Is anything lost that was acknowledged, wherever the process dies?

    python benchmarks/durability.py [--rounds 200] [--postgres] [--json]

Two processes are killed, each in as many rounds, each round on the store that the ones before left: a gateway in the
middle of its traffic (deaths/gateway.py), and one that does everything else the store is for (deaths/worker.py). They
die at a named step, the n-th time it is reached, or at a random instant. After each death the store is opened again
and compared with what the process had acknowledged.

How to read it: every claim is a count over all rounds that must be 0. What `reply_first` and `none` can lose is
measured: "oldest" is how long before the death the oldest lost exchange had been told.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from common import machine_facts, options_of, report
from deaths import gateway, worker

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # a fake engine, a gateway's process, a Postgres server


def main() -> None:
    parser = options_of(__doc__, rounds=200)
    parser.add_argument("--postgres", action="store_true", help="on a Postgres server of its own, from a wheel")
    arguments = parser.parse_args()
    machine = machine_facts()
    with tempfile.TemporaryDirectory() as folder, servers(arguments.postgres) as new_place:
        (Path(folder) / "gateway").mkdir()
        asked, facts = gateway.rounds(arguments.rounds, Path(folder) / "gateway", new_place)
        worked, more = worker.rounds(arguments.rounds, Path(folder), new_place)
    name = "durability-postgres" if arguments.postgres else "durability"
    report(name, arguments, [*asked, *worked], machine, gateway=facts, worker=more)


@contextlib.contextmanager
def servers(postgres: bool) -> Iterator[Callable[[Path, str], str]]:
    """A function that gives a new place for a store."""
    if not postgres:
        yield lambda folder, name: str(folder / f"{name}.sqlite")
        return
    from postgres_server import postgres_server

    with postgres_server() as server:
        yield lambda _folder, _name: server.database()


if __name__ == "__main__":
    main()
