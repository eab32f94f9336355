"""explain and status on what a provider answered: fidelity, branch, feedback, and why it does not train."""

import time

import pytest
from dashboard.recorded import recorded

from nightschool.store.database import Store


@pytest.fixture
def ids(state):
    with Store.open(state / "store.sqlite") as store:
        return recorded(store, time.time())


def test_explain_tells_all_that_is_known_of_an_exchange(run, ids):
    told = run("explain", ids["second"])
    assert told.code == 0
    for line in (
        "Not yet looked at by any run. Today it would be excluded: text only.",
        "dialect\topenai.chat, streamed",
        "branch\tmain",
        "fidelity\ttext_only: the upstream gives no token ids",
        "tokens\tmissing; the upstream counts prompt_tokens 212, completion_tokens 38, total_tokens 250",
        "flags\tusage_missing",
        "good for\tsft, dpo, kto",
        "category fault\ttoo vague",
        "number stars\t4",
        "call 1 of this exchange",
    ):
        assert line in told.out, line
    today = run("explain", ids["second"], "--json").document["data"]["today"]
    assert (today["state"], today["reason"]) == ("excluded", "text only")
    assert today["objectives"] == {
        "sft": None, "dpo": None, "kto": None, "hindsight": "text only", "oapl": "text only", "grpo": "text only",
    }  # fmt: skip


def test_an_attempt_and_its_repetition_name_each_other(run, ids):
    lost, first = run("explain", ids["lost"]).out, run("explain", ids["first"]).out
    assert f"branch\tretry, sent again as {ids['first']}: both count once" in lost
    assert "Today it would be excluded: upstream_error." in lost
    assert f"branch\tmain, the same request as {ids['lost']}: both count once" in first


def test_status_says_what_the_material_is_good_for(run, ids):
    told = run("status")
    assert "good for\tusable\tagainst the rest" in told.out
    good = run("status", "--json").document["data"]["good_for"]
    usable = {line["name"]: line["usable"] for line in good["objectives"]}
    for line in good["objectives"]:
        assert f"{line['title']}\t{line['usable']} of {line['of']}\t" in told.out
    assert usable["sft"] > usable["kto"] > usable["dpo"] == 1
    assert usable["oapl"] == usable["grpo"] == usable["hindsight"] == 0
