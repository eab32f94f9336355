"""`nightschool train` on a tiny model: taught, interrupted, resumed, refused."""

import json
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from nightschool.cli import study
from nightschool.cli.settings import overridden, study_config
from nightschool.cli.study import Watched, rounded
from nightschool.config import Config
from nightschool.curation.influence import Cap
from nightschool.errors import ConfigError
from nightschool.objectives.oapl import OAPL
from nightschool.objectives.sft import SFT
from nightschool.training.plans import default_config


@pytest.fixture
def handbook(tmp_path):
    path = tmp_path / "handbook.jsonl"
    rows = (
        {"messages": [{"role": "user", "content": f"order {i}"}, {"role": "assistant", "content": "the tool"}]}
        for i in range(24)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_handbook_becomes_the_first_release(run, tiny, handbook, state):
    told = run(
        "train", "--objective", "sft", "--data", str(handbook), "--agent", "shop", "--model", str(tiny), "--json"
    )
    assert told.code == 0, told.err
    data = told.document["data"]
    assert (data["objective"], data["steps"], data["train"]) == ("sft", 2, 24)  # 24 rows, 12 a step
    assert (state / "adapters" / data["adapter"] / "adapter_model.safetensors").exists()
    assert "✓ Studied" in told.err
    started = run("start", data["adapter"][:8], "--agent", "shop")
    assert (started.code, started.out.splitlines()[0]) == (0, "v1 serves shop.")
    # by night there must be something to learn from
    night = run("train", "--model", str(tiny), "--json")
    assert (night.code, night.document["kind"]) == (4, "refusal")
    assert run("train", "--resume", data["run"]).code == 3, "it is done"


def test_ctrl_c_finishes_the_step_and_the_run_is_resumed(run, tiny, handbook, state):
    (state.parent / "nightschool.toml").write_text("[training.sft.loop]\nepochs = 60\n")
    words = ["train", "--objective", "sft", "--data", str(handbook), "--model", str(tiny), "--state", str(state)]
    err = state.parent / "train.err"
    with err.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "nightschool", *words, "--agent", "shop"],
            stdout=subprocess.DEVNULL,
            stderr=stream,
            cwd=state.parent,
        )
    try:
        until = time.monotonic() + 120
        while not list(state.glob("runs/*/metrics.jsonl")):
            assert time.monotonic() < until, err.read_text()
            assert process.poll() is None, err.read_text()
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
    told = err.read_text()
    assert "Traceback" not in told
    command = told.splitlines()[-1].split()
    assert command[:3] == ["nightschool", "train", "--resume"]

    config = json.loads(next(state.glob("runs/*/config.json")).read_text())
    assert config["loop"]["epochs"] == 60
    resumed = run("train", "--resume", command[3][-8:], "--json")
    assert resumed.code == 0, resumed.err
    assert resumed.document["data"]["steps"] == 120  # 60 epochs of 2 steps, none twice


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (["--objective", "reinforce"], 2, "There is no objective 'reinforce'."),
        (["--objective", "dpo"], 4, "There is nothing to study."),
        (["--data", "x"], 5, "There is no file x."),
        (["--resume", "nonsense"], 5, "There is no run 'nonsense'."),
        (["--objective", "sft", "--data", "absent.jsonl"], 5, "There is no file absent.jsonl."),
    ],
)
def test_what_cannot_be_trained(run, store, tiny, words, code, what):
    told = run("train", "--model", str(tiny), *words)
    assert (told.code, what in told.err) == (code, True)


def test_settings_lie_over_the_defaults():
    night = overridden(
        default_config(OAPL), {"loop": {"epochs": 1, "optimizer": {"learning_rate": 1}}}, "training.oapl"
    )
    assert night.loop.epochs == 1
    assert night.loop.optimizer.learning_rate == 1.0
    assert night.loop.batch_size == default_config(OAPL).loop.batch_size
    assert overridden(default_config(SFT), {}, "training.sft") == default_config(SFT)


def test_what_holds_for_all_objectives_lies_under_their_own_tables():
    shared = {"max_staleness": 2, "influence": {"principal": {"share": 0.05}, "trusted": ["code"]}}
    settings = Config(tables={"training": {"curation": shared, "oapl": {"curation": {"max_staleness": 3}}}})
    assert study_config(settings, SFT).curation.max_staleness == 2
    curation = study_config(settings, OAPL).curation
    assert curation.max_staleness == 3
    assert curation.influence.principal == Cap(0.05, 2, 50)
    assert curation.influence.trusted == ("code",)
    assert study_config(Config(), OAPL) == default_config(OAPL)
    for wrong, match in (
        ({"x": 1}, r"\[training.curation\] has no setting 'x'"),
        ({"influence": {"tenant": {"share": 2}}}, "share = 2.0"),
    ):
        with pytest.raises(ConfigError, match=match):
            study_config(Config(tables={"training": {"curation": wrong}}), SFT)


@pytest.mark.parametrize(
    ("table", "match"),
    [
        ({"lop": {}}, r"\[training.oapl\] has no setting 'lop'"),
        ({"loop": 3}, "loop is not a table"),
        ({"loop": {"epochs": "3"}}, "epochs = '3' is not a int"),
        ({"loop": {"epochs": 1.5}}, "epochs = 1.5 is not a int"),
        ({"loop": {"optimizer": {"learning_rate": True}}}, "learning_rate = True is not a float"),
    ],
)
def test_settings_of_another_kind_are_refused(table, match):
    with pytest.raises(ConfigError, match=match):
        overridden(default_config(OAPL), table, "training.oapl")


class Lines:
    """Takes the place of `Progress` and keeps what it is told."""

    def __init__(self):
        self.said = []

    def say(self, text, always=False):
        self.said.append(text)

    def tell(self, text, took_s=None):
        self.said.append(text)


def test_what_is_left_is_told_after_three_steps_and_never_grows(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(study.time, "monotonic", lambda: clock[0])
    lines = Lines()
    watched = Watched(lines)
    watched.stage("studying")
    for step, took in enumerate((10, 10, 10, 10, 10, 10), start=1):
        clock[0] += took
        watched.step(SimpleNamespace(step=step, num_steps=30, tokens_per_s=1020.4))
    told = [line.rpartition("tok/s")[2].strip() for line in lines.said[1:]]
    # 3 durations are known at the 4th step: 26 left × 10 s = 260 s ≈ 4 min; 24 × 10 s = 240 s
    assert told == ["", "", "", "about 4 min left", "about 4 min left", "about 4 min left"]
    assert lines.said[-1].startswith("Training  ━━━━━─────────────────────  6/30  1,020 tok/s")
    clock[0] += 40  # one slow step: 23 left, median 10 → it would say 230 s, the promise of 190 s stands
    watched.step(SimpleNamespace(step=7, num_steps=30, tokens_per_s=900.0))
    assert lines.said[-1].endswith("3 min to 15 min left")  # 240 − 50 = 190 s; slowest 40 s × 23 = 920 s
    watched.end()
    assert lines.said[-1] == "✓ Studied"


def test_forecasts_are_round():
    assert [rounded(value) for value in (0, 3, 44, 56, 89, 91, 260)] == [
        "10 s", "10 s", "40 s", "1 min", "1 min", "2 min", "4 min",
    ]  # fmt: skip
