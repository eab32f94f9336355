"""The whole way on a real engine: teach, serve, examine with probes, promote under `up`, roll back."""

import json
import random
import time
import urllib.request

import pytest
from exam_harness import Harness
from up_process import LOOPBACK

from nightschool.store.database import Store

pytestmark = pytest.mark.slow


@pytest.fixture
def handbook(tmp_path):
    """`handbook("order")`: 24 conversations about one word."""

    def write(word):
        path = tmp_path / f"{word}.jsonl"
        says = {"role": "assistant", "content": word}
        rows = ({"messages": [{"role": "user", "content": f"{word} {i}"}, says]} for i in range(24))
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


def test_from_a_handbook_to_a_promoted_candidate_and_back(run, start_up, tiny, handbook, state):
    def taught(word):
        words = ("--objective", "sft", "--data", str(handbook(word)), "--agent", "assistant", "--model", str(tiny))
        return run("train", *words, "--json").document["data"]["adapter"]

    first, second = taught("order"), taught("tool")
    assert run("start", first, "--agent", "assistant").code == 0
    up = start_up(state)
    up.wait_ready()
    # A random model's probe answers are all wrong in both arms; only its likelihoods may move, by less than this.
    (state.parent / "nightschool.toml").write_text(
        '[gate]\ncustomers = 40\n[gate.margins]\n"OOD probes, likelihood" = 5.0\n"tool-call validity" = 30\n'
        '"refusals" = 30\n"sessions scored" = 30\n'
    )
    exam = run("gate", "open", second, "--json").document["data"]["exam_id"]
    with Store.open(state / "store.sqlite") as store:
        chance = random.Random(3)
        pairs = [(chance.random() < 0.95, chance.random() < 0.2) for _ in range(40)]
        Harness(store, exam).play(pairs, candidate=second, incumbent=first)
    told = run("gate", "close", exam, "--json")
    assert told.code == 0, told.out
    suites = {suite["name"]: suite for suite in told.document["data"]["report"]["suites"]}
    assert suites["OOD probes, likelihood"]["num_pairs"] == 72
    assert suites["OOD probes, answers"]["num_pairs"] == 24
    assert suites["OOD probes, likelihood"]["difference"] != 0, "two adapters, two likelihoods"
    assert "Asked the probe set" in told.err

    assert served(up) == first
    assert run("promote", second).code == 0
    assert served(up, wait_for=second) == second
    assert run("rollback").code == 0
    assert served(up, wait_for=first) == first


def test_the_known_model_is_fetched_by_up_and_speaks(start_up, state):
    up = start_up(state, model="smollm2-135m")
    up.wait_ready(600)
    body = {
        "model": "assistant",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
        "max_tokens": 20,
    }
    with LOOPBACK.open(post(up, body), timeout=120) as reply:
        assert "Paris" in json.load(reply)["choices"][0]["message"]["content"]


def served(up, wait_for=None):
    """The version that answers now; the alias is read at most every 0.2 s."""
    until = time.monotonic() + 5
    while True:
        body = {"model": "assistant", "messages": [{"role": "user", "content": "to"}], "max_tokens": 1}
        with LOOPBACK.open(post(up, body), timeout=60) as reply:
            policy = reply.headers["X-Nightschool-Policy"]
        if wait_for in (None, policy) or time.monotonic() > until:
            return policy


def post(up, body):
    url = f"{up.running.gateway_url}/v1/chat/completions"
    return urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
