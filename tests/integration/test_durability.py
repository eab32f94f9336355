"""Twenty processes are killed one after another, as benchmarks/durability.py does by hundreds."""

from pathlib import Path

import pytest

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_nothing_acknowledged_is_lost_or_doubled_wherever_the_process_dies(tmp_path, request, monkeypatch, kind):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import durability

    server = request.getfixturevalue("postgres") if kind == "postgres" else None

    def new_place(folder: Path, name: str) -> str:
        return server.database() if server else str(folder / f"{name}.sqlite")

    rows, facts = durability.rounds(20, tmp_path, new_place)
    missed = [row for row in rows if row.passed is False]
    assert missed == []
    assert sum(facts["deaths"].values()) == 20
    acknowledged = next(row for row in rows if row.name == "acknowledged")
    assert int(acknowledged.value) > 20  # some rounds die before anything is told, most do not
