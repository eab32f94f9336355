"""Whole nights on a tiny model: from recorded sessions to an installed adapter, halted, refused, resumed."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from tiny import make_tiny_model
from traffic import audited, busy_day, fix_splits

from nightschool.curation.dataset import CurationRule
from nightschool.errors import InterruptedRun, RefusedError, TooLittleDataError
from nightschool.objectives.oapl import OaplRule
from nightschool.objectives.sft import SftRule
from nightschool.releases.adapters import check_adapter
from nightschool.releases.aliases import start
from nightschool.store.database import Store
from nightschool.store.explain import explain
from nightschool.store.schema import datasets, exchanges, ledger, run_metrics, runs
from nightschool.training.backend import AdamConfig
from nightschool.training.drift import DriftRule
from nightschool.training.loop import LoopConfig, Now
from nightschool.training.night import resume, study
from nightschool.training.plans import BackendConfig, NumberFormat, Plan, StudyConfig, config_of
from nightschool.training.runs import load_run, lock_run, run_folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a day's sessions, made once and copied."""
    path = tmp_path_factory.mktemp("lived") / "store.sqlite"
    with Store.open(path) as store:
        fix_splits(store)
        busy_day(store, 120)
        audited(store)
    return path


@pytest.fixture
def store(tmp_path: Path, lived: Path) -> Iterator[Store]:
    (tmp_path / "store.sqlite").write_bytes(lived.read_bytes())
    with Store.open(tmp_path / "store.sqlite") as opened:
        yield opened


def night(model: Path, rate: float = 3e-3, **loop: int) -> StudyConfig:
    return StudyConfig(
        OaplRule(),
        backend=BackendConfig(model=str(model), dtype=NumberFormat.FLOAT32, rank=4, alpha=8),
        loop=LoopConfig(**{"epochs": 2, "checkpoint_every": 2, **loop}, optimizer=AdamConfig(learning_rate=rate)),
        drift=DriftRule(kl_stop=50.0, kl_restore=50.0, min_labelled=1000),
        curation=CurationRule(half_life_days=1e300),  # two nights on one store see labels of one age, to the last bit
    )


class CtrlC:
    """Presses Ctrl-C during step `at`."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.stages: list[str] = []
        self.notes: list[str] = []

    def stage(self, text: str) -> None:
        self.stages.append(text)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def step(self, now: Now) -> None:
        if now.step == self.at:
            os.kill(os.getpid(), signal.SIGINT)


def adapter_bytes(state: Path, digest: str | None) -> bytes:
    return (state / "adapters" / str(digest) / "adapter_model.safetensors").read_bytes()


def count(store: Store, table: sa.Table) -> int:
    with store.read() as conn:
        return conn.scalar(sa.select(sa.func.count()).select_from(table)) or 0


def test_a_night_ends_in_an_installed_adapter_and_explains_itself(store: Store, tmp_path: Path, model: Path) -> None:
    run = study(store, tmp_path, Plan("shop"), night(model))
    assert run.state == "done"
    manifest = check_adapter(tmp_path / "adapters" / str(run.adapter_digest), str(run.adapter_digest))
    assert (manifest.run_id, manifest.parent_digest) == (run.id, None)
    assert manifest.dataset_digest == run.dataset_digest
    stored = load_run(store, run.id)
    assert stored == run
    folder = run_folder(tmp_path, run.id)
    assert json.loads((folder / "config.json").read_text()) == run.config
    logged = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in logged] == list(range(1, run.summary["steps"] + 1))
    assert {"loss", "grad_norm", "kl", "kappa", "held_out_good", "held_out_bad", "tokens_per_s"} < set(logged[0])
    assert count(store, run_metrics) == sum(len(row) - 1 for row in logged)
    assert not (folder / "work").exists()
    with store.read() as conn:
        lines = conn.execute(sa.select(ledger)).all()
        everything = conn.scalars(sa.select(exchanges.c.id)).all()
        dataset = conn.execute(sa.select(datasets)).one()
        trained = next(line for line in lines if line.state == "trained")
        story = explain(conn, store.tenant, trained.exchange_id)
    assert Counter(line.exchange_id for line in lines) == Counter(everything)
    assert dataset.digest == run.dataset_digest
    assert trained.advantage is not None
    assert (trained.advantage > 0) == (trained.reward == 1.0)
    assert story["summary"] == f"trained by run {run.id}: trained"


def test_good_replies_gain_and_bad_ones_lose(store: Store, tmp_path: Path, model: Path) -> None:
    run = study(store, tmp_path, Plan("shop"), night(model, epochs=6))
    drift = run.summary["windows"][0]["drift"]
    # held-out users; the reply's first token decides, and it is learned from the request alone
    assert drift["held_out_good"] > drift["held_out_bad"]
    assert drift["kl"] > 0


def test_a_second_night_starts_from_the_first_and_skips_what_it_learned(
    store: Store, tmp_path: Path, model: Path
) -> None:
    first = study(store, tmp_path, Plan("shop"), night(model))
    start(store, "shop", str(first.adapter_digest), "test")
    busy_day(store, 40, seed=3, version=str(first.adapter_digest))
    second = study(store, tmp_path, Plan("shop"), night(model))
    assert second.parent_digest == first.adapter_digest
    with store.read() as conn:
        taught = [
            set(
                conn.scalars(
                    sa.select(ledger.c.exchange_id).where(ledger.c.run_id == r.id, ledger.c.state == "trained")
                )
            )
            for r in (first, second)
        ]
    assert taught[1]
    assert not taught[0] & taught[1]


def test_ctrl_c_saves_and_resume_is_bit_for_bit(store: Store, tmp_path: Path, model: Path) -> None:
    through = study(store, tmp_path, Plan("shop"), night(model))
    with pytest.raises(InterruptedRun, match="nightschool train --resume") as halted:
        study(store, tmp_path, Plan("shop"), night(model), CtrlC(3))
    run_id = halted.value.next_step.split()[-1]
    assert load_run(store, run_id).state == "interrupted"
    resumed = resume(store, tmp_path, run_id)
    assert resumed.state == "done"
    assert adapter_bytes(tmp_path, resumed.adapter_digest) == adapter_bytes(tmp_path, through.adapter_digest)
    assert resumed.adapter_digest != through.adapter_digest  # the manifest names the run
    assert resumed.summary["steps"] == through.summary["steps"]
    lines = (run_folder(tmp_path, run_id) / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, through.summary["steps"] + 1))
    with pytest.raises(RefusedError, match="done"):
        resume(store, tmp_path, run_id)


def test_a_run_of_an_older_version_is_read_without_the_settings_that_are_no_more(
    store: Store, tmp_path: Path, model: Path
) -> None:
    run = study(store, tmp_path, Plan("shop"), night(model))
    older = {name: value for name, value in run.config["curation"].items() if name != "influence"}
    config = config_of(replace(run, config={**run.config, "curation": {**older, "influence_share": 0.5}}))
    assert config == night(model)
    assert config_of(load_run(store, run.id)) == night(model)


def test_two_processes_do_not_work_on_one_run(store: Store, tmp_path: Path, model: Path) -> None:
    watch = CtrlC(1)
    with pytest.raises(InterruptedRun) as halted:
        study(store, tmp_path, Plan("shop"), night(model), watch)
    with store.read() as conn:
        taught = conn.scalar(sa.select(datasets.c.num_samples))
    said = f"{taught} of {taught} votes may teach, of {taught} people; the loudest has 1."
    assert watch.notes == [said], "who is heard is said before the first step"
    run_id = halted.value.next_step.split()[-1]
    with lock_run(run_folder(tmp_path, run_id)), pytest.raises(Exception, match="being worked on"):
        resume(store, tmp_path, run_id)
    assert load_run(store, run_id).state == "interrupted"


def test_too_little_feedback_fails_the_run_with_its_number(tmp_path: Path, model: Path) -> None:
    with Store.open(tmp_path / "small.sqlite") as store:
        fix_splits(store)
        busy_day(store, 15)
        with pytest.raises(TooLittleDataError, match="40 would do"):
            study(store, tmp_path, Plan("shop"), night(model))
        with store.read() as conn:
            row = conn.execute(sa.select(runs)).one()
        assert row.state == "failed"
        assert "40 would do" in row.error
        assert row.finished_at is not None
        with pytest.raises(TooLittleDataError, match="40 would do"):  # it chooses again, from what is there by then
            resume(store, tmp_path, row.id)


def test_a_night_that_only_drifted_is_refused(store: Store, tmp_path: Path, model: Path) -> None:
    config = replace(night(model, rate=1.0), drift=DriftRule(kl_stop=0.01, kl_restore=0.001))
    with pytest.raises(RefusedError, match="changed nothing"):
        study(store, tmp_path, Plan("shop"), config)
    assert not list((tmp_path / "adapters").glob("*")) if (tmp_path / "adapters").exists() else True


def test_a_handbook_teaches_the_first_adapter(store: Store, tmp_path: Path, model: Path) -> None:
    handbook = tmp_path / "handbook.jsonl"
    page = {"messages": [{"role": "user", "content": "where?"}, {"role": "assistant", "content": "here"}]}
    handbook.write_text("".join(json.dumps(page) + "\n" for _ in range(24)))
    config = StudyConfig(
        SftRule(),
        backend=BackendConfig(model=str(model), dtype=NumberFormat.FLOAT32, rank=4, alpha=8),
        loop=LoopConfig(epochs=8, batch_size=12, optimizer=AdamConfig(learning_rate=1e-2)),
    )
    run = study(store, tmp_path, Plan("shop", "sft", handbook), config)
    assert (run.state, run.objective) == ("done", "sft")
    with store.read() as conn:
        query = sa.select(run_metrics.c.value).where(run_metrics.c.run_id == run.id, run_metrics.c.name == "loss")
        losses = conn.scalars(query.order_by(run_metrics.c.step)).all()
    assert len(losses) == 16
    assert losses[-1] < losses[0] / 3


def test_outside_the_main_thread_signals_stay_untouched(store: Store, tmp_path: Path, model: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    found = []
    thread = threading.Thread(target=lambda: found.append(study(store, tmp_path, Plan("shop"), night(model))))
    thread.start()
    thread.join()
    assert found[0].state == "done"
    assert signal.getsignal(signal.SIGINT) is before
