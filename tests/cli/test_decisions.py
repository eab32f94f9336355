"""Exams, verdicts and moves of the alias, typed as a person would."""

import json
import os
import random
import sys

import pytest
from exam_harness import CANDIDATE, INCUMBENT, Harness

from nightschool.cli.running import Running, write_running
from nightschool.gate.exam import close_exam, open_exam
from nightschool.gate.rule import default_rule
from nightschool.releases.aliases import current


def serving(store):
    with store.read() as conn:
        return current(conn, store.tenant, "shop")


def decided(store, candidate_rate, incumbent_rate=0.45, customers=60):
    """An exam of 60 customers without probes, filled and closed."""
    exam = open_exam(store, "shop", CANDIDATE, default_rule(customers, probes=None))
    chance = random.Random(1)
    pairs = [(chance.random() < candidate_rate, chance.random() < incumbent_rate) for _ in range(customers)]
    Harness(store, exam).play(pairs)
    return close_exam(store, exam)


def test_a_passed_candidate_serves_and_goes_back(store, run):
    assert run("promote", "80c2").code == 3, "nobody examined it"
    decided(store, 0.85)
    shown = run("gate", "80c2")
    assert shown.code == 0
    assert shown.out.startswith("PROMOTE 80c2…1f over v1. Better on held-out traffic by ")
    assert shown.err == f"nightschool promote {CANDIDATE[:12]}\n"
    assert (
        "decide\t80c2…1f passed the gate and does not serve yet\tnightschool promote 80c200000000" in run("status").out
    )

    promoted = run("promote", "80c2", "--json").document
    assert promoted["answer"] == "v2 serves shop; before it was v1."
    assert promoted["data"]["by"].endswith("(command line)")
    assert serving(store) == CANDIDATE

    back = run("rollback", "--reason", "complaints", "--json").document
    assert back["answer"] == "v1 serves shop; before it was v2."
    assert back["data"]["reason"] == "complaints"
    assert serving(store) == INCUMBENT
    again = run("rollback")
    assert (again.code, serving(store)) == (3, INCUMBENT)


def test_a_refused_candidate_stays_refused_unless_somebody_answers_for_it(store, run):
    decided(store, 0.25)
    shown = run("gate", "show", CANDIDATE, "--json")
    assert shown.code == 3
    refusal = shown.document["refusal"]
    assert refusal["what"].startswith("REFUSE 80c2…1f. Held-out traffic fell by ")
    assert refusal["why"].startswith("This gate sees a gain of ")
    assert shown.document["data"]["report"]["suites"][0]["reading"] == "worse"

    assert run("promote", "80c2").code == 3
    assert run("promote", "80c2", "--override").code == 3, "an override needs its reason"
    assert serving(store) == INCUMBENT
    told = run("promote", "80c2", "--override", "--reason", "only I know why", "--json").document
    assert (told["data"]["kind"], told["data"]["reason"]) == ("override", "only I know why")
    assert serving(store) == CANDIDATE


def test_an_exam_is_opened_and_needs_its_customers(store, run, state):
    (state.parent / "nightschool.toml").write_text("[gate]\ncustomers = 40\nprobes = false\n")
    opened = run("gate", "open", "80c2", "--json").document
    exam = opened["data"]["exam_id"]
    assert opened["data"]["candidate_model"] == f"shop@{CANDIDATE}"
    assert opened["data"]["incumbent_model"] == f"shop@{INCUMBENT}"
    assert opened["data"]["customers"] == 40

    waits = run("gate", "80c2")
    assert waits.code == 5
    assert waits.err.splitlines()[1:] == [f"Exam {exam} is still open.", f"nightschool gate close {exam}"]

    short = run("gate", "close", exam[-8:], "--json")
    assert short.code == 4
    # least_share 0.8 of 40
    assert short.document["refusal"]["what"].startswith("NOT ENOUGH DATA: 0 of 32 paired customers.")
    assert run("gate", "close", "nonsense").code == 5


HARNESS = """
import json, os, sys
seen = {name: value for name, value in os.environ.items() if name.startswith("NIGHTSCHOOL_")}
seen.pop("NIGHTSCHOOL_DATA", None)
open(sys.argv[1], "w").write(json.dumps(seen))
print("data of the harness")
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def gateway(state):
    """What a running `up` leaves behind; no probe is asked, so nobody calls it."""
    write_running(state, Running(os.getpid(), "http://127.0.0.1:1", "http://127.0.0.1:2", "shop", "tiny"))
    (state.parent / "nightschool.toml").write_text("[gate]\ncustomers = 40\nprobes = false\n")


@pytest.fixture
def harness(tmp_path):
    script, seen = tmp_path / "harness.py", tmp_path / "seen.json"
    script.write_text(HARNESS)
    return seen, lambda code=0: f"{sys.executable} {script} {seen} {code}"


@pytest.mark.usefixtures("gateway")
def test_a_harness_is_told_everything_it_needs(store, run, harness, capfd, state):
    seen, command = harness
    told = run("gate", "run", "80c2", "--harness", command(), "--json")
    assert told.code == 4, "it brought no customers"
    assert told.document["kind"] == "verdict"
    assert "data of the harness" in told.err, "what a harness prints is no part of the answer"
    found = json.loads(seen.read_text())
    token = (state / "token").read_text().strip()
    exam = told.document["data"]["exam_id"]
    assert found == {
        "NIGHTSCHOOL_URL": "http://127.0.0.1:1",
        "NIGHTSCHOOL_EXAM": exam,
        "NIGHTSCHOOL_CANDIDATE": f"shop@{CANDIDATE}",
        "NIGHTSCHOOL_INCUMBENT": f"shop@{INCUMBENT}",
        "NIGHTSCHOOL_TOKEN": token,
    }
    assert token not in told.out + told.err


@pytest.mark.usefixtures("gateway", "store")
def test_a_harness_that_fails_leaves_the_exam_open(run, harness):
    _, command = harness
    told = run("gate", "run", "80c2", "--harness", command(7))
    assert told.code == 1
    assert "ended with code 7" in told.err
    exam = told.err.rpartition("nightschool gate close ")[2].strip()
    assert run("gate", "close", exam).code == 4
    assert run("gate", "run", "80c2", "--harness", "no-such-program-anywhere").code == 2
    assert run("gate", "run", "80c2", "--harness", "").code == 2


@pytest.mark.usefixtures("store")
def test_a_harness_needs_a_running_gateway(run):
    told = run("gate", "run", "80c2", "--harness", "true")
    assert (told.code, told.err.splitlines()[0]) == (5, "Nightschool is not running.")


@pytest.mark.usefixtures("store")
def test_names_that_mean_nothing_or_too_much(run, store):
    assert run("promote", "v9").code == 5
    assert run("promote", "80c").code == 5, "three characters are too few to be meant"
    assert run("promote", "1111", "--agent", "shop").code == 3, "it serves already"
    other = CANDIDATE[:-1] + "0"
    from nightschool.store import schema

    row = {"tenant": "default", "digest": other, "agent": "shop", "manifest": {}, "created_at": 1.0}
    store.write(lambda conn: conn.execute(schema.adapters.insert().values(**row)))
    told = run("promote", "80c2")
    assert (told.code, told.err.splitlines()[0]) == (2, "'80c2' means several adapters.")
    assert run("start", "v1", "--agent", "bank").code == 5, "a number belongs to its agent"
    assert run("start", other, "--agent", "bank").code == 0
    assert run("rollback").code == 2, "two agents serve now, and none was named"
    assert run("start", "base", "--agent", "third", "--json").document["data"]["digest"] == "base"
