"""Rows on several ranks give the loss and the gradient that they give on one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import rank_process
import torch
from objective_batches import MADE, made

from nightschool.objectives.loss import LOGPROBS
from nightschool.training.losses.mixing import count, total_loss


def test_ranks_do_not_matter(tmp_path: Path) -> None:
    tests = str(Path(rank_process.__file__).parent)
    paths = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths, "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, rank_process.__file__]
    started = [
        subprocess.Popen([*command, str(rank), "2", str(tmp_path)], env=environment, stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    for process in started:
        _, said = process.communicate(timeout=200)
        assert process.returncode == 0, said.decode()
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        for name in MADE:
            rows, terms = made(name)
            weights = rank_process.policy()
            loss = total_loss(terms, rows, {LOGPROBS: rank_process.scores(weights, rows)}, count(rows))
            loss.backward()
            assert weights.grad is not None
            assert found[name][0] == pytest.approx(loss.item(), rel=1e-5), name
            torch.testing.assert_close(torch.tensor(found[name][1]), weights.grad, rtol=1e-4, atol=1e-6, msg=name)
