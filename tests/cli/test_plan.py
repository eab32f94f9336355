"""`nightschool plan`: described runs, files, what does not fit, and forecasts beside what runs took."""

import json
import subprocess
import sys

import pytest
from traffic import fix_splits, record_session, say

from nightschool.types import FeedbackKind

DESCRIBED = ("--objective", "sft", "--sequences", "2000", "--model", "7b")


@pytest.fixture
def handbook(tmp_path):
    path = tmp_path / "handbook.jsonl"
    rows = (
        {"messages": [{"role": "user", "content": f"order {i}"}, {"role": "assistant", "content": "the tool"}]}
        for i in range(24)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_described_run_on_a_card(run):
    told = run("plan", *DESCRIBED, "--device", "h100", "--price", "2.5", "--json")
    assert told.code == 0, told.err
    data = told.document["data"]
    assert data["fits"]
    assert data["work"]["trained"]["num"] == 2000 * (512 + 256)
    seconds, cost = data["seconds"], data["cost"]
    assert seconds["low"] < seconds["middle"] < seconds["high"], "a device never run gets a range"
    assert cost["middle"] == pytest.approx(seconds["middle"] / 3600 * 2.5)
    told = run("plan", *DESCRIBED, "--device", "h100")
    assert "SFT on qwen2.5-7b fits on an H100 (80 GB)" in told.out
    assert "Not measured here" in told.out
    assert "cost" not in told.out, "without a price there is none"


def test_what_does_not_fit_is_refused_with_knobs(run):
    long = ("--device", "l4", "--prompt", "700", "--completion", "64")
    told = run("plan", *DESCRIBED, *long, "--token-budget", "8192", "--json")
    assert (told.code, told.document["data"]["fits"]) == (3, False)
    knobs = {one["knob"]: one["value"] for one in told.document["data"]["remedies"]}
    assert {"token_budget", "model", "device"} <= set(knobs)
    assert f"token_budget = {knobs['token_budget']} would fit" in told.document["refusal"]["why"]
    assert told.document["refusal"]["next"] == f"nightschool plan --token-budget {knobs['token_budget']}"
    assert run("plan", *DESCRIBED, *long, "--token-budget", knobs["token_budget"]).code == 0


def test_no_tokenizer_no_model_and_no_torch(handbook, tmp_path):
    """Nothing of the model is here: characters are counted, and a card's forecast never imports torch."""
    words = ["plan", "--objective", "sft", "--data", str(handbook), "--model", "7b", "--device", "h100", "--json"]
    code = (
        "import sys\n"
        "from nightschool.cli.main import main\n"
        f"code = main({[*words, '--state', str(tmp_path / 'none')]!r})\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
        "sys.exit(code)\n"
    )
    environment = {"HOME": str(tmp_path), "PATH": "", "PYTHONPATH": ":".join(sys.path), "NIGHTSCHOOL_MODEL": "7b"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)["data"]
    assert data["counted"].startswith("an estimate: 4 characters")
    # "user\norder 7" is 12 characters, "assistant\n" 10, "the tool" 8: eight tokens, with marks and newlines thirteen
    assert 12 * 24 * 0.5 < data["work"]["trained"]["num"] < 18 * 24


def test_a_forecast_meets_what_the_run_took(run, tiny, handbook, state):
    asked = ("--objective", "sft", "--data", str(handbook), "--model", str(tiny))
    planned = run("plan", *asked, "--json")
    assert planned.code == 0, planned.err
    before = planned.document["data"]
    assert before["measured"]
    assert before["counted"] == f"with the tokenizer of {tiny}"
    assert before["past"] == []
    trained = run("train", *asked, "--agent", "shop", "--json")
    assert trained.code == 0, trained.err
    took = trained.document["data"]
    assert before["work"]["trained"]["num"] == took["tokens"], "the packer that counts is the one that trains"
    assert before["work"]["steps"] == took["steps"]
    assert took["processor_s"] > 0
    after = run("plan", "--objective", "sft", "--model", str(tiny), "--data", took["dataset"][:12], "--json")
    assert after.code == 0, after.err
    data = after.document["data"]
    assert data["counted"] == "recorded tokens"
    assert data["work"]["trained"]["num"] == took["tokens"]
    (past,) = data["past"]
    assert past["measured_s"] == took["seconds"]
    assert past["measured_bytes"] == took["peak_bytes"] > 0
    told = run("plan", *asked)
    assert "past run" in told.out
    assert "Fewer than three past runs" in told.out


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        ((), 5, "There is nothing to plan for."),
        (("--data", "absent.jsonl"), 5, "absent.jsonl is no file"),
        (("--sequences", "100", "--model", "70b"), 2, "'70b' is not known"),
        (("--sequences", "100", "--device", "tpu"), 2, "No device is called 'tpu'"),
        (("--sequences", "100", "--dtype", "fp8"), 2, "dtype = 'fp8' is not known"),
        (("--sequences", "100", "--objective", "reinforce"), 2, "There is no objective 'reinforce'."),
        (("--data", "x", "--generate"), 2, "Nothing says what is drawn."),
    ],
)
def test_what_cannot_be_planned(run, words, code, what):
    told = run("plan", *words)
    assert (told.code, what in told.err) == (code, True), told.err


def test_whose_votes_would_wait_is_said_before_a_run(run, store, tiny):
    fix_splits(store)
    for seed in range(5):
        record_session(store, "where is my parcel", seed, user="user-0-1")  # of the train split
        say(store, FeedbackKind.THUMB, seed % 2 == 0, session=f"session-{seed}")
    asked = ("plan", "--objective", "kto", "--agent", "shop", "--model", str(tiny), "--device", "h100")
    told = run(*asked, "--json")
    assert told.code == 0, told.err
    assert told.document["data"]["influence"] == {
        "votes": 5, "taught": 2, "people": 1, "loudest": 2, "sources": {"end_user": 2}, "held": {"influence cap": 3},
    }  # fmt: skip
    lines = [" ".join(line.split()) for line in run(*asked).out.splitlines()]
    assert "may teach 2 of 5, of 1 person" in lines
    assert "held back: influence cap 3" in lines
