"""A run says that it lives; one that was killed is told from one that runs, by whoever looks."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from databases import ON_BOTH
from patience import wait_until

from nightschool.dashboard.pages import run_page, runs_page
from nightschool.dashboard.queries.scope import Scope
from nightschool.jobs import alive
from nightschool.jobs.alive import LEASE_S, kept_alive, state_at
from nightschool.store import schema
from nightschool.store.database import Store
from nightschool.training.runs import Run, create_run, update_run

LIVES = """
import sys, time
from pathlib import Path
from nightschool.jobs import alive
from nightschool.store.database import Store
from nightschool.training import runs
alive.BEAT_S = 0.05
with Store.open(Path(sys.argv[1])) as store:
    runs.create_run(store, Path(sys.argv[2]), runs.Run("r-1", "shop", "dpo", "running", {}, {}))
    with alive.kept_alive(store, "r-1"):
        time.sleep(600)
"""


def heard_at(store: Store, run_id: str = "r-1") -> float:
    with store.read() as conn:
        return conn.scalar(sa.select(schema.runs.c.updated_at).where(schema.runs.c.id == run_id)) or 0.0


def state(store: Store, now: float) -> str | None:
    with store.read() as conn:
        return conn.scalar(sa.select(state_at(now)).where(schema.runs.c.id == "r-1"))


def test_a_killed_run_is_shown_as_interrupted_with_the_command_that_resumes_it(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.sqlite") as store:
        child = subprocess.Popen([sys.executable, "-c", LIVES, str(tmp_path / "store.sqlite"), str(tmp_path)])
        try:
            wait_until(lambda: heard_at(store) > 0, 60)
            first = heard_at(store)
            wait_until(lambda: heard_at(store) > first, 60)
        finally:
            child.kill()
            child.wait()
        last = heard_at(store)
        stored = sa.select(schema.runs.c.state)
        with store.read() as conn:
            for now, word in ((last + LEASE_S - 1, "running"), (last + LEASE_S + 1, "interrupted")):
                scope = Scope("default", now, {})
                page = run_page(conn, scope, {"id": "r-1"})
                listed = runs_page(conn, scope, {})
                assert page.data["state"] == word
                assert listed.data["counts"] == {word: 1}
                assert [row["state"] for row in listed.data["rows"]] == [word]
            assert page.answer == "DPO run was interrupted."
            assert conn.scalar(stored) == "running", "nobody had to write it"


@pytest.mark.parametrize("kind", ON_BOTH)
def test_only_running_runs_are_renewed(new_place, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alive, "BEAT_S", 0.02)
    with new_place(kind, tmp_path) as place, Store.open(place) as store:
        create_run(store, tmp_path, Run("r-1", "shop", "dpo", "running", {}, {}))
        with kept_alive(store, "r-1"):
            begun = heard_at(store)
            wait_until(lambda: heard_at(store) > begun, 20)
            update_run(store, "r-1", state="failed", error="It broke.")
            ended = heard_at(store)
            time.sleep(0.2)
            assert heard_at(store) == ended, "what has ended is heard of no more"
        assert state(store, ended + 10 * LEASE_S) == "failed"
