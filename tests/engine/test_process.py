"""The engine as a process: its ready line, its end, what it refuses to start with."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from nightschool.engine.__main__ import main


def test_it_says_when_it_is_ready_and_ends_on_sigterm(tiny):
    command = [sys.executable, "-W", "error", "-m", "nightschool.engine", "--model", str(tiny), "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*command, "--dtype", "float32"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as engine:
        assert engine.stdout is not None
        assert engine.stderr is not None
        line = engine.stdout.readline()
        assert line.startswith("engine ready url=http://127.0.0.1:")
        url = line.split("url=")[1].split()[0]
        with urllib.request.urlopen(f"{url}/health") as reply:
            assert json.load(reply)["dtype"] == "float32"
        engine.send_signal(signal.SIGTERM)
        assert engine.wait(20) == 0
        assert engine.stderr.read() == ""


def test_a_public_address_needs_a_key(capsys, monkeypatch):
    monkeypatch.delenv("NIGHTSCHOOL_ENGINE_KEY", raising=False)
    assert main(["--model", "any", "--host", "0.0.0.0"]) == 3
    assert "NIGHTSCHOOL_ENGINE_KEY" in capsys.readouterr().err


def test_a_taken_port_is_told_before_the_model_is_loaded(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["--model", "any", "--port", str(taken.getsockname()[1])]) == 2
    assert "cannot listen" in capsys.readouterr().err


def test_a_missing_model_names_the_next_command(capsys):
    assert main(["--model", "/no/where", "--port", "0"]) == 5
    assert "nightschool models fetch" in capsys.readouterr().err


@pytest.mark.slow
def test_the_real_model_answers_and_agrees_with_transformers():
    import torch
    from transformers import AutoModelForCausalLM

    from nightschool.engine.runner import Runner
    from nightschool.engine.sampling import Sampling
    from nightschool.engine.scheduler import Done, Request, Scheduler
    from nightschool.errors import MissingError
    from nightschool.models.base import load_base
    from nightschool.models.fetch import find_model

    try:
        folder = find_model("smollm2-135m")
    except MissingError as error:
        pytest.skip(str(error))
    base = load_base(folder, torch.bfloat16, "cpu")
    events: list = []
    scheduler = Scheduler(Runner(base, 8, 512), events.extend, frozenset({base.renderer.end_id}), 1 << 28)
    question = base.renderer.prompt_ids(({"role": "user", "content": "What is the capital of France?"},))
    scheduler.submit(Request("", question, Sampling(temperature=0, max_tokens=20)))
    for at in range(7):
        scheduler.submit(Request("", question, Sampling(max_tokens=40, seed=at)))
    with torch.inference_mode():
        while len(events) < 8:
            scheduler.turn()
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    differences: list[float] = []
    for request, done in events:
        assert isinstance(done, Done)
        sampled = [token.id for token in done.tokens]
        if request.sampling.temperature == 0:
            assert "Paris" in base.renderer.decode(sampled)
        ids = torch.tensor([question + sampled])
        with torch.inference_mode():
            logprobs = reference(ids).logits[0].float().log_softmax(-1)
        for at, token in enumerate(done.tokens, start=len(question)):
            differences.append(token.logprob - logprobs[at - 1, token.id].item())
    sizes = sorted(map(abs, differences))
    assert len(sizes) > 50
    assert sum(sizes) / len(sizes) <= 0.06
    assert sizes[int(0.99 * len(sizes))] <= 0.25
