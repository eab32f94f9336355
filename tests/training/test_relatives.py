"""OAPL and its relatives on a tiny model: what a step does, that packs change nothing, and whole runs from a store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_backend import gathered
from tiny import make_tiny_model
from traffic import audited, fix_splits, record_session, say

from nightschool.errors import RefusedError
from nightschool.models.base import load_base
from nightschool.models.lora import LoraConfig
from nightschool.objectives.catalog import OBJECTIVES
from nightschool.objectives.loss import Objective
from nightschool.store.database import Store
from nightschool.training.backend import AdamConfig
from nightschool.training.local import LocalBackend
from nightschool.training.loop import LoopConfig
from nightschool.training.night import study
from nightschool.training.plans import BackendConfig, NumberFormat, Plan, StudyConfig
from nightschool.types import FeedbackKind, Sample

NAMES = ("oapl", "apo", "tbrm", "topr", "spo", "spo_plus", "oapl_group", "mirror", "opmd", "var_grad")
GROUPED = ("oapl_group", "mirror", "opmd", "var_grad")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def backend(model: Path, token_budget: int = 4096) -> LocalBackend:
    made = LocalBackend(load_base(model, torch.float32, "cpu"), LoraConfig(rank=4, alpha=8), token_budget)
    made.open(None)
    return made


def rows(objective: Objective, made: LocalBackend) -> list[Sample]:
    """Two requests, each answered well by a call that starts with 9 and badly by one that starts with 8.

    Between two sampled tokens stands a tool's, which no loss may see. The fresh adapter is anchor and behavior policy.
    """
    mask = (False, False, False, True, False, True)
    drawn = [
        Sample(
            f"{request} {word}", (5, 6, request, word, 50, 11), mask, mask, reward=float(word == 9),
            policy_version="v1", group_id=str(request), annotations={"p_hat": 0.5, "p_lo": 0.45},
        )
        for request in (20, 21)
        for word in (9, 8)
    ]  # fmt: skip
    scored = list(zip(drawn, made.forward(drawn), strict=True))
    known = [replace(s, token_annotations={"behavior_logprobs": logprobs}) for s, logprobs in scored]
    found = objective.annotate(known, objective.rule())
    return [replace(s, reference_logprobs=logprobs) for s, (_, logprobs) in zip(found, scored, strict=True)]


@pytest.mark.parametrize("name", NAMES)
def test_good_replies_gain_and_bad_ones_lose(model: Path, name: str) -> None:
    objective, made = OBJECTIVES[name], backend(model)
    batch = rows(objective, made)
    terms = {"": objective.loss(objective.rule())}
    before = made.forward(batch)
    for step in range(4):
        made.forward_backward(batch, terms)
        made.optim_step(AdamConfig(learning_rate=3e-3), step)
    gained = [
        sum(x - y for x, y in zip(now, then, strict=True) if x is not None and y is not None)
        for now, then in zip(made.forward(batch), before, strict=True)
    ]
    good, bad = gained[::2], gained[1::2]
    assert min(good) > max(bad)
    if name != "tbrm":  # its value starts near 0: hardly anything pushes a failure down
        assert max(bad) < 0
    if name != "apo":  # V* = 0.717 at p = 1/2: a failure is pushed more than twice as hard as a success is pulled
        assert min(good) > 0


@pytest.mark.parametrize("name", NAMES)
def test_packs_change_nothing(model: Path, name: str) -> None:
    objective, whole, cut = OBJECTIVES[name], backend(model), backend(model, 6)
    terms = {"": objective.loss(objective.rule())}
    batch = [
        replace(s, weight=1.0 + place, reference_logprobs=tuple(None if x is None else x - 0.3 for x in before))
        for place, s in enumerate(rows(objective, whole))
        if (before := s.reference_logprobs) is not None
    ]
    assert len(cut._packs(batch)) == 4 > len(whole._packs(batch))
    expected = whole.forward_backward(batch, terms)
    assert cut.forward_backward(batch, terms).loss == pytest.approx(expected.loss, rel=1e-5, abs=1e-6)
    torch.testing.assert_close(gathered(cut), gathered(whole), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_tools_token_never_matters(model: Path, name: str) -> None:
    """Whatever anchor and engine say of a token that the policy did not sample."""
    objective, made = OBJECTIVES[name], backend(model)
    terms = {"": objective.loss(objective.rule())}
    batch = rows(objective, made)

    def spoiled(values: tuple[float | None, ...]) -> tuple[float | None, ...]:
        return tuple(-99.0 if value is None else value for value in values)

    other = [
        replace(
            s,
            reference_logprobs=spoiled(s.reference_logprobs or ()),
            token_annotations={k: spoiled(v) for k, v in s.token_annotations.items()},
        )
        for s in batch
    ]
    expected = made.forward_backward(batch, terms)
    at = gathered(made)
    assert made.forward_backward(other, terms).loss == expected.loss
    assert torch.equal(gathered(made), at)


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty requests of one agent, each made twice: a reply that starts with token 7 pleased, the other did not."""
    path = tmp_path_factory.mktemp("lived") / "store.sqlite"
    with Store.open(path) as store:
        fix_splits(store)
        for request in range(40):
            for word in (7, 8):
                name = f"session-{request}-{word}"
                record_session(store, f"request {request}", request, word, session=name, user=f"user-{request}")
                say(store, FeedbackKind.THUMB, word == 7, session=name)
        audited(store)
    return path


@pytest.mark.parametrize("name", ["apo", "spo_plus", *GROUPED])
def test_from_a_store_to_an_adapter(tmp_path: Path, lived: Path, model: Path, name: str) -> None:
    (tmp_path / "store.sqlite").write_bytes(lived.read_bytes())
    with Store.open(tmp_path / "store.sqlite") as store:
        run = study(store, tmp_path, Plan("shop", name), settings(model, name))
    assert run.state == "done"
    assert (tmp_path / "adapters" / str(run.adapter_digest) / "adapter_model.safetensors").exists()
    drift = run.summary["windows"][0]["drift"]
    if OBJECTIVES[name].anchored:
        assert drift["held_out_good"] > drift["held_out_bad"]  # of other users, by the call's first token


def test_what_no_engine_scored_is_refused_where_ratios_are_to_the_engine(
    tmp_path: Path, lived: Path, model: Path
) -> None:
    (tmp_path / "store.sqlite").write_bytes(lived.read_bytes())
    with Store.open(tmp_path / "store.sqlite") as store, pytest.raises(RefusedError, match="engine's own"):
        study(store, tmp_path, Plan("shop", "topr"), settings(model, "topr"))


def settings(model: Path, name: str) -> StudyConfig:
    return StudyConfig(
        OBJECTIVES[name].rule(),
        BackendConfig(model=str(model), dtype=NumberFormat.FLOAT32, rank=4, alpha=8),
        LoopConfig(epochs=2, optimizer=AdamConfig(learning_rate=3e-3)),
        rehearsal_weight=0.0,
    )
