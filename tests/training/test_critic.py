"""The critic beside the policy: neither moves the other, packs change nothing, a state holds both."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import make_tiny_model

from nightschool.errors import InputError
from nightschool.models.base import load_base
from nightschool.models.lora import LoraConfig
from nightschool.objectives.loss import LOGPROBS, VALUES, Loss, Terms
from nightschool.training.backend import AdamConfig, NotFiniteError
from nightschool.training.critic import CRITIC
from nightschool.training.local import POLICY, LocalBackend
from nightschool.types import Sample

BOTH = frozenset({LOGPROBS, VALUES})
PPO: Terms = {"": Loss("ppo", outputs=BOTH)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def backend(folder: Path, token_budget: int = 4096) -> LocalBackend:
    made = LocalBackend(load_base(folder, torch.float32, "cpu"), LoraConfig(rank=4, alpha=8), token_budget)
    made.open(None)
    return made


def stirred(made: LocalBackend) -> LocalBackend:
    """With a critic, and no parameter at zero: B = 0 would hide half of the gradients."""
    made.values(samples()[:1])
    assert made.critic is not None
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in [*made.lora.parameters(POLICY), *made.critic.adam.parameters]:
            parameter.normal_(0, 0.2, generator=generator)
    return made


def samples(count: int = 5) -> list[Sample]:
    rng = random.Random(3)
    prompt, made = tuple(rng.randrange(3, 250) for _ in range(12)), []
    for index in range(count):
        ids = (*prompt, *(rng.randrange(3, 250) for _ in range(rng.randrange(4, 16))))
        mask = tuple(place >= 12 and place % 5 != 0 for place in range(len(ids)))  # every fifth: a tool's
        per_token = {
            name: tuple(rng.gauss(0, 1) if used else None for used in mask)
            for name in ("advantage", "return", "reference_values")
        }
        anchor = tuple(-4 - rng.random() if used else None for used in mask)
        made.append(Sample(str(index), ids, mask, mask, reference_logprobs=anchor, token_annotations=per_token))
    return made


def gradients(made: LocalBackend, rows: list[Sample]) -> tuple[torch.Tensor, torch.Tensor]:
    """The policy's and the critic's."""
    made.forward_backward(rows, PPO)
    assert made.critic is not None
    sets = (made.lora.parameters(POLICY), made.critic.adam.parameters)
    found = [torch.cat([p.grad.flatten() for p in some if p.grad is not None]) for some in sets]
    made._drop_gradient()
    return found[0], found[1]


def test_an_untrained_critic_says_nothing_rather_than_noise(folder: Path) -> None:
    made = backend(folder)
    before = made.forward(samples())
    for row, sample in zip(made.values(samples()), samples(), strict=True):
        assert row == tuple(0.0 if used else None for used in sample.completion_mask)
    assert made.forward(samples()) == before, "the critic's adapter is not the policy's"


def test_a_value_is_of_the_state_before_its_token(folder: Path) -> None:
    """The last token is nobody's state: what it is changes no value."""
    made = stirred(backend(folder))
    whole = tuple(place >= 12 for place in range(len(samples()[0].token_ids)))
    one = replace(samples()[0], completion_mask=whole, loss_mask=whole)
    other = replace(one, token_ids=(*one.token_ids[:-1], one.token_ids[-1] + 1))
    assert made.values([one]) == made.values([other])
    earlier = replace(one, token_ids=(*one.token_ids[:-2], one.token_ids[-2] + 1, one.token_ids[-1]))
    assert made.values([one])[0][-1] != made.values([earlier])[0][-1]


def test_gradients_depend_on_neither_split_nor_order(folder: Path) -> None:
    rows = samples()
    whole = gradients(stirred(backend(folder)), rows)
    assert min(one.norm() for one in whole) > 1e-3
    for budget, order in ((40, rows), (1, rows), (4096, rows[::-1])):
        found = gradients(stirred(backend(folder, budget)), order)
        for one, expected in zip(found, whole, strict=True):
            assert (one - expected).abs().max() < 1e-4 * expected.abs().max()


def test_a_coupled_term_in_the_batch_leaves_the_critic_its_gradient(folder: Path) -> None:
    """A batch with a coupled loss goes through slopes: values take that way too."""
    pair = [
        replace(row, term="pair", group_id="p", annotations={"preferred": float(place)})
        for place, row in enumerate(samples()[:2])
    ]
    terms: Terms = {**PPO, "pair": Loss("dpo")}
    whole, cut = stirred(backend(folder)), stirred(backend(folder, 1))
    expected = whole.forward_backward([*samples(), *pair], terms)
    report = cut.forward_backward([*samples(), *pair], terms)
    assert report.loss == pytest.approx(expected.loss, abs=1e-5)
    assert whole.critic is not None
    assert cut.critic is not None
    for one, two in zip(whole.critic.adam.parameters, cut.critic.adam.parameters, strict=True):
        assert one.grad is not None
        torch.testing.assert_close(two.grad, one.grad, atol=1e-5, rtol=1e-4)


def test_the_critics_gradient_agrees_with_a_finite_difference(folder: Path) -> None:
    made, rows = stirred(backend(folder)), samples(2)
    made.forward_backward(rows, PPO)
    assert made.critic is not None
    parameter = made.critic.adam.parameters[1]
    assert parameter.grad is not None
    slope, losses = parameter.grad[2, 1].item(), []
    for shift in (1e-2, -2e-2):
        with torch.no_grad():
            parameter[2, 1] += shift
        losses.append(made.forward_backward(rows, PPO).loss)
    assert slope == pytest.approx((losses[0] - losses[1]) / 2e-2, rel=0.05, abs=1e-4)


def test_a_critic_learns_what_states_are_worth(folder: Path) -> None:
    made = backend(folder)
    rows = [
        replace(
            row,
            token_annotations={
                **row.token_annotations,
                "advantage": tuple(0.0 if used else None for used in row.loss_mask),
                "return": tuple(
                    float(place) / 10 if row.loss_mask[place] else None for place in range(len(row.loss_mask))
                ),
            },
        )
        for row in samples()
    ]
    terms: Terms = {"": Loss("ppo", {"value_clip": None, "value_weight": 1.0}, outputs=BOTH)}
    before = made.forward(rows)
    losses = []
    for step in range(60):
        losses.append(made.forward_backward(rows, terms).loss)
        made.optim_step(AdamConfig(learning_rate=1e-3), step)
    assert losses[-1] < losses[0] / 20
    assert made.forward(rows) == before, "an advantage of zero leaves the policy where it is"


def steps(made: LocalBackend, rows: list[Sample], some: range) -> None:
    for step in some:
        made.forward_backward(rows[step % 3 :], PPO)
        made.optim_step(AdamConfig(learning_rate=1e-2), step)


def test_a_resumed_run_is_bit_for_bit_the_one_that_went_on(folder: Path, tmp_path: Path) -> None:
    rows, through, halted, resumed = samples(), backend(folder), backend(folder), backend(folder)
    steps(through, rows, range(6))
    steps(halted, rows, range(3))
    halted.save_state(tmp_path / "state")
    resumed.load_state(tmp_path / "state")
    steps(resumed, rows, range(3, 6))
    through.save_weights(tmp_path / "a")
    resumed.save_weights(tmp_path / "b")
    names = ["adapter_model.safetensors", f"{CRITIC}/adapter_model.safetensors", f"{CRITIC}/head.safetensors"]
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    assert resumed.values(rows) == through.values(rows)


def test_weights_carry_the_critic_and_an_adapter_does_not(folder: Path, tmp_path: Path) -> None:
    made = stirred(backend(folder))
    values = made.values(samples())
    made.save_weights(tmp_path / "window")
    made.save_adapter(tmp_path / "adapter")
    assert sorted(path.name for path in (tmp_path / "adapter").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    made.open(tmp_path / "adapter")
    assert made.critic is None
    made.open(tmp_path / "window")
    assert made.values(samples()) == values


def test_a_broken_number_of_the_critic_stops_both(folder: Path) -> None:
    made = stirred(backend(folder))
    assert made.critic is not None
    before = [parameter.detach().clone() for parameter in made.lora.parameters(POLICY)]
    made.forward_backward(samples(), PPO)
    grad = made.critic.adam.parameters[0].grad
    assert grad is not None
    grad[0, 0] = float("inf")
    with pytest.raises(NotFiniteError):
        made.optim_step(AdamConfig(), 0)
    assert all(torch.equal(one, two) for one, two in zip(before, made.lora.parameters(POLICY), strict=True))


def test_a_loss_that_names_no_values_among_its_outputs_gets_none(folder: Path) -> None:
    with pytest.raises(InputError, match="no values"):
        backend(folder).forward_backward(samples(), {"": Loss("ppo")})
