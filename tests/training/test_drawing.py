"""Replies drawn by the trainer's backend are its own policy's, however they are computed."""

from __future__ import annotations

import math

import pytest
from small_backend import small_backend
from tiny import make_tiny_model

from nightschool.training.backend import Drawn
from nightschool.training.local import LocalBackend
from nightschool.types import Sample

PROMPTS = [[1, 20, 30, 40], [1, 20, 31], [5, 6, 7, 8, 9, 10, 11]]


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> LocalBackend:
    return small_backend(make_tiny_model(tmp_path_factory.mktemp("model")))


def scored(backend: LocalBackend, prompt: list[int], one: Drawn) -> list[float | None]:
    sampled = (False,) * len(prompt) + (True,) * len(one.ids)
    (row,) = backend.forward([Sample("a", (*prompt, *one.ids), sampled, sampled)])
    return [x for x in row if x is not None]


def test_what_is_drawn_is_scored_alike(backend: LocalBackend) -> None:
    drawn = backend.draw(PROMPTS * 3, longest=6, seed=1)
    assert len(drawn) == 9
    for prompt, one in zip(PROMPTS * 3, drawn, strict=True):
        assert 1 <= len(one.ids) <= 6
        assert one.logprobs == pytest.approx(scored(backend, prompt, one), abs=1e-4)
        assert all(0 <= entropy <= math.log(backend.base.network.config.vocab_size) for entropy in one.entropies)
    assert drawn[0].ids != drawn[3].ids, "one prompt, two draws"
    assert [one.ids for one in backend.draw(PROMPTS * 3, 6, seed=1)] == [one.ids for one in drawn]
    assert [one.ids for one in backend.draw(PROMPTS * 3, 6, seed=2)] != [one.ids for one in drawn]


def test_without_a_cache_the_same_is_drawn(backend: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = backend.draw(PROMPTS, longest=5, seed=3)
    monkeypatch.setattr(backend.body, "fits", lambda length: False)
    whole = backend.draw(PROMPTS, longest=5, seed=3)
    assert [one.ids for one in whole] == [one.ids for one in cached]
    for one, other in zip(whole, cached, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_a_reply_ends_with_its_turn(backend: LocalBackend) -> None:
    end = backend.base.renderer.end_id
    replies = backend.draw([[1, 20]] * 200, longest=40, seed=0)
    ended = [one for one in replies if one.ids[-1] == end]
    assert ended, "of 200 random replies some end"
    assert all(end not in one.ids[:-1] for one in replies)
    assert any(len(one.ids) < 40 for one in ended)
    assert all(len(one.ids) == len(one.logprobs) == len(one.entropies) for one in replies)


def test_drawing_leaves_the_policy_alone(backend: LocalBackend) -> None:
    sampled = (False, True, True)
    row = Sample("a", (1, 20, 30), sampled, sampled)
    before = backend.forward([row])
    backend.draw(PROMPTS, longest=2, seed=0)
    assert backend.forward([row]) == before
    assert all(parameter.requires_grad for parameter in backend.lora.parameters("policy"))
