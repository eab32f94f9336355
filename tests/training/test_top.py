"""Log-probabilities of several tokens in one place: values, gradients, and that packing does not change them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_backend import gathered, small_backend
from tiny import make_tiny_model
from torch import nn

from nightschool.objectives.loss import LOGPROBS, TOP, Loss
from nightschool.training.local import LocalBackend
from nightschool.training.logprobs import Head, likeliest, target_logprobs, top_logprobs
from nightschool.types import Sample


def test_values_and_gradients_are_those_of_a_whole_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    head = nn.Linear(5, 11, bias=False)
    head.weight.requires_grad_(False)
    hidden = torch.randn(4, 5, requires_grad=True)
    targets, temperatures = torch.randint(0, 11, (4, 3)), torch.tensor([1.0, 0.7, 1.3, 1.0])
    wanted = (head(hidden) / temperatures[:, None]).log_softmax(-1).gather(1, targets)
    pull = torch.randn(4, 3)
    (expected,) = torch.autograd.grad((wanted * pull).sum(), hidden, retain_graph=True)
    found = top_logprobs(hidden, head, targets, temperatures)
    (slopes,) = torch.autograd.grad((found * pull).sum(), hidden)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(slopes, expected, atol=1e-5, rtol=1e-4)
    monkeypatch.setattr("nightschool.training.logprobs.TILE", 4)
    one = target_logprobs(hidden, Head(head), targets[:, 0], temperatures)
    torch.testing.assert_close(found[:, 0], one)
    (expected,) = torch.autograd.grad((wanted[:, 0] * pull[:, 0]).sum(), hidden)
    (slopes,) = torch.autograd.grad((one * pull[:, 0]).sum(), hidden)
    torch.testing.assert_close(slopes, expected, atol=1e-5, rtol=1e-4)


def test_the_likeliest_come_first() -> None:
    head = nn.Linear(2, 4, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0, 0.0], [3.0, 0.0], [2.0, 0.0], [-1.0, 0.0]]))
    assert likeliest(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), head, 2).tolist() == [[1, 2], [3, 0]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def rows(made: LocalBackend, k: int) -> list[Sample]:
    """Three rows with the likeliest tokens of each place, and a teacher who gives them other probabilities."""
    samples = [
        Sample(str(i), (5, 6, 7, 20 + i, 30, 40 + i), (False,) * 3 + (True,) * 3, (False,) * 3 + (True,) * 3)
        for i in range(3)
    ]
    named = [
        replace(sample, reference_logprobs=scores, token_annotations={"top_ids": ids})
        for sample, scores, ids in zip(samples, made.forward(samples), made.top(samples, k), strict=True)
    ]
    told = made.forward_top(named)
    return [
        replace(s, token_annotations={**s.token_annotations, "teacher_top": row - 0.3 - 0.1 * np.arange(k)})
        for s, row in zip(named, told, strict=True)
    ]


def test_what_is_asked_of_the_model_stands_where_the_tokens_do(folder: Path) -> None:
    made = small_backend(folder, 4096)
    for sample in rows(made, 4):
        ids, told = sample.token_annotations["top_ids"], made.forward_top([sample])[0]
        assert ids.shape == told.shape == (6, 4)
        assert (ids[:3] == -1).all()
        assert np.isnan(told[:3]).all()
        assert (np.diff(told[3:]) <= 0).all(), "likeliest first"
        for place, token in enumerate(sample.token_ids):
            where = np.flatnonzero(ids[place] == token)
            if place > 2 and len(where):
                assert told[place, where[0]] == pytest.approx(made.forward([sample])[0][place], abs=1e-5)


def test_a_divergence_over_top_tokens_does_not_see_how_its_batch_is_packed(folder: Path) -> None:
    terms = {"": Loss("top_divergence", {"alpha": 0.5}, outputs=frozenset({LOGPROBS, TOP}), num_top=4)}
    whole, cut = small_backend(folder, 4096), small_backend(folder, 6)
    samples = rows(whole, 4)
    assert len(cut._packs(samples)) == 3
    first, second = (made.forward_backward(samples, terms) for made in (whole, cut))
    assert first.loss == pytest.approx(second.loss, abs=1e-6)
    assert first.loss > 0
    torch.testing.assert_close(gathered(whole), gathered(cut), atol=1e-6, rtol=1e-4)


def test_rows_of_another_loss_beside_it_need_no_top_tokens(folder: Path) -> None:
    terms = {
        "": Loss("top_divergence", {}, outputs=frozenset({LOGPROBS, TOP}), num_top=4),
        "other": Loss("sft", {}, 0.5),
    }
    made = small_backend(folder, 4096)
    samples = rows(made, 4)
    plain = replace(samples[0], id="plain", token_annotations={}, term="other")
    alone = made.forward_backward(samples, {"": terms[""]}).loss
    other = made.forward_backward([plain], {"other": Loss("sft")}).loss
    assert made.forward_backward([*samples, plain], terms).loss == pytest.approx(alone + 0.5 * other, abs=1e-6)
