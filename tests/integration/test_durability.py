"""Twenty processes of each kind are killed one after another, as benchmarks/durability.py does by hundreds."""

import importlib
from pathlib import Path

import pytest

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("victim", ["gateway", "worker"])
def test_nothing_acknowledged_is_lost_or_doubled_wherever_it_dies(tmp_path, request, monkeypatch, victim, kind):
    monkeypatch.syspath_prepend(BENCHMARKS)
    killed = importlib.import_module(f"deaths.{victim}")
    server = request.getfixturevalue("postgres") if kind == "postgres" else None

    def new_place(folder: Path, name: str) -> str:
        return server.database() if server else str(folder / f"{name}.sqlite")

    rows, facts = killed.rounds(20, tmp_path, new_place)
    # How many seconds a commit takes on a busy machine is for the benchmark to say.
    missed = [row for row in rows if row.passed is False and "oldest" not in row.name]
    assert missed == []
    assert sum(facts["deaths"].values()) == 20
    assert facts["acknowledged"] > 20  # some rounds die before anything is told, most do not
