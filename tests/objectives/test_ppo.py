"""PPO with a critic: golden G4, tokens that are nobody's turn, truncated trajectories, a run with two windows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from ratios import batch_of, row
from tiny import make_tiny_model

from nightschool.errors import RefusedError
from nightschool.models.base import load_base
from nightschool.models.lora import LoraConfig
from nightschool.objectives.advantages import whitened
from nightschool.objectives.clipping import BEHAVIOR
from nightschool.objectives.loss import VALUES
from nightschool.objectives.off_policy import CORRECTIONS, ORIGIN, WEIGHT
from nightschool.objectives.ppo import PPO, PpoRule, after_anchor, annotate, loss
from nightschool.objectives.rollouts import TRUNCATED
from nightschool.training.backend import AdamConfig
from nightschool.training.local import LocalBackend
from nightschool.training.loop import Course, LoopConfig, Now, run_loop
from nightschool.training.losses.values import ppo, value_losses
from nightschool.types import Sample

PLAIN = PpoRule(whiten=False)


def trajectory(values: list[float], reward: float = 1.0, tools: tuple[int, ...] = (), **more) -> Sample:
    count = len(values)
    per_token = {"reference_values": values, **more.pop("token_annotations", {})}
    return row(
        "y", count + len(tools), tools, reward=reward, reference=[-1.0] * count, token_annotations=per_token, **more
    )


def estimated(sample: Sample, rule: PpoRule = PLAIN) -> tuple[list[float], list[float]]:
    """Advantages and returns of its loss tokens."""
    (made,) = after_anchor([sample], rule).samples
    advantage, returns = (made.token_annotations[name] for name in ("advantage", "return"))
    return [x for x in advantage if x is not None], [x for x in returns if x is not None]


@pytest.mark.parametrize(
    ("decay", "advantages", "returns"),
    [
        # deltas .2 .2 .4; A_2 = .4, A_1 = .2 + .95 * .4 = .58, A_0 = .2 + .95 * .58 = .751
        (0.95, [0.751, 0.580, 0.400], [0.951, 0.980, 1.000]),
        (1.0, [0.8, 0.6, 0.4], [1.0, 1.0, 1.0]),
    ],
)
def test_golden_g4_of_advantages(decay: float, advantages: list[float], returns: list[float]) -> None:
    found = estimated(trajectory([0.2, 0.4, 0.6]), replace(PLAIN, trace_decay=decay))
    assert found[0] == pytest.approx(advantages, abs=1e-9)
    assert found[1] == pytest.approx(returns, abs=1e-9)


def test_a_discounted_advantage_is_a_sum_of_what_was_not_foreseen() -> None:
    """By the definition, not the recursion: A_t = sum over k of (gamma lambda)^k delta_(t + k)."""
    values, gamma, decay = [0.3, -0.1, 0.5, 0.2], 0.9, 0.7
    deltas = [0 + gamma * values[t + 1] - values[t] for t in range(3)] + [2.0 - values[3]]
    expected = [sum((gamma * decay) ** k * deltas[t + k] for k in range(4 - t)) for t in range(4)]
    rule = replace(PLAIN, gamma=gamma, trace_decay=decay)
    assert estimated(trajectory(values, 2.0), rule)[0] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("ddof", "expected"), [(1, [0.991344, 0.017092, -1.008436]), (0, [1.214144, 0.020934, -1.235077])]
)
def test_golden_g4_of_whitening(ddof: int, expected: list[float]) -> None:
    advantages = np.array([0.751, 0.580, 0.400])
    [found] = whitened([advantages], ddof)
    assert found.tolist() == pytest.approx(expected, abs=1e-6)
    made = estimated(trajectory([0.2, 0.4, 0.6]), PpoRule(trace_decay=0.95, ddof=ddof))
    assert made[0] == pytest.approx(expected, abs=1e-6)
    assert made[1] == pytest.approx([0.951, 0.980, 1.000], abs=1e-9), "returns are not whitened"


def test_golden_g4_of_a_tools_token() -> None:
    """Its value is not even there; whatever a critic would say of it cannot matter."""
    rule = replace(PLAIN, trace_decay=0.95)
    said = trajectory([0.2, 0.6], tools=(1,))
    assert estimated(said, rule)[0] == pytest.approx([0.7800, 0.4000], abs=1e-9)  # .4 + .95 * .4
    values = said.token_annotations["reference_values"]
    loud = replace(said, token_annotations={"reference_values": tuple(9.9 if x is None else x for x in values)})
    assert estimated(loud, rule)[0] == pytest.approx([0.7800, 0.4000], abs=1e-9)


def test_golden_g4_of_a_penalty_in_the_rewards() -> None:
    behavior = [-1.0, -1.0, -1.0]
    known = {BEHAVIOR: behavior, ORIGIN: [b - k for b, k in zip(behavior, [0.1, -0.05, 0.2], strict=True)]}
    sample = trajectory([0.2, 0.4, 0.6], token_annotations=known)
    rule = replace(PLAIN, kl_weight=0.05, trace_decay=0.95)
    # A_2 = .99 - .6, A_1 = .0025 + .6 - .4 + .95 * .39, A_0 = -.005 + .4 - .2 + .95 * .573
    assert estimated(sample, rule)[0] == pytest.approx([0.73935, 0.57300, 0.39000], abs=1e-9)


def test_golden_g4_of_the_value_loss() -> None:
    sample = trajectory([0.2], token_annotations={"return": [1.0]})
    batch = replace(batch_of([sample], [[-1.0]]), outputs={VALUES: torch.tensor([0.5], requires_grad=True)})
    # V_0 + .2 = .4 is farther from 1 than .5: .36 / 2, and no gradient
    clipped = value_losses(batch, 0.2)
    assert clipped.tolist() == pytest.approx([0.18], abs=1e-6)
    assert torch.autograd.grad(clipped.sum(), batch.outputs[VALUES])[0].item() == 0
    plain = value_losses(batch, None)
    assert plain.tolist() == pytest.approx([0.125])
    assert torch.autograd.grad(plain.sum(), batch.outputs[VALUES])[0].item() == pytest.approx(-0.5)


def test_both_parts_of_the_loss_have_a_denominator_and_a_gradient_of_their_own() -> None:
    known = {"return": [1.0, 1.0], "advantage": [0.5, -0.5]}
    sample = trajectory([0.2, 0.4], token_annotations=known)
    batch = replace(
        batch_of([sample], [[-1.0, -1.0]], torch.float64),
        outputs={VALUES: torch.tensor([0.2, 0.4], dtype=torch.float64, requires_grad=True)},
    )
    total = ppo(batch, value_weight=0.5)
    # policy: -(.5 - .5) / 2; values: (.64 + .36) / 2 / 2 * .5
    assert total.item() == pytest.approx(0.125)
    to_policy, to_critic = torch.autograd.grad(total, (batch.logprobs, batch.outputs[VALUES]))
    assert to_policy.tolist() == pytest.approx([-0.25, 0.25])
    assert to_critic.tolist() == pytest.approx([-0.2, -0.15])  # .5 * (V - R) / 2


def test_a_truncated_trajectory_goes_on_from_its_last_value() -> None:
    """Told as if it had ended, it would be taught that nothing came after: A_1 = 0 - .6 instead of .7 - .6."""
    cut = trajectory([0.2, 0.6, 0.7], reward=0.0, annotations={TRUNCATED: 1.0})
    (made,) = after_anchor([cut], PLAIN).samples
    assert made.loss_mask == (False, False, True, True, False)
    found = estimated(cut)
    assert found[0] == pytest.approx([0.5, 0.1])
    assert found[1] == pytest.approx([0.7, 0.7])
    assert estimated(replace(cut, annotations={}))[0] == pytest.approx([-0.2, -0.6, -0.7])


def test_weights_come_along_with_the_advantages() -> None:
    known = {BEHAVIOR: [-1.0, -1.5]}
    rule = replace(PLAIN, correction=CORRECTIONS["decoupled"])
    made = after_anchor([trajectory([0.0, 0.0], token_annotations=known)], rule)
    assert made.samples[0].token_annotations[WEIGHT][-2:] == pytest.approx((1.0, np.exp(0.5)))
    assert made.figures["weight_max"] == pytest.approx(np.exp(0.5))
    assert loss(rule).settings["weighted"]


def test_how_much_the_critic_knew_is_logged() -> None:
    """Values that are the returns leave no advantage; a critic that says 0 of everything explains nothing."""
    rows = [trajectory([1.0, 1.0]), trajectory([0.0, 0.0], 0.0)]
    assert after_anchor(rows, PLAIN).figures["explained_variance"] == pytest.approx(1.0)
    naive = [trajectory([0.0, 0.0]), trajectory([0.0, 0.0], 0.0)]
    assert after_anchor(naive, PLAIN).figures["explained_variance"] == pytest.approx(0.0)


def test_a_fresh_critic_and_a_short_trace_make_a_long_replys_reward_decay_to_nothing() -> None:
    long = trajectory([0.0] * 200)
    assert estimated(long, replace(PLAIN, trace_decay=0.95))[0][0] < 1e-4
    assert estimated(long)[0][0] == 1.0


def test_what_is_refused() -> None:
    rows = [replace(trajectory([0.0, 0.0]), id=name, reference_logprobs=None) for name in "abc"]
    assert annotate(rows, PpoRule()) == rows
    for broken, rule, why in (
        (rows[:2], PpoRule(), "whitening takes three"),
        ([*rows, replace(rows[0], reward=None)], PpoRule(), "missing reward"),
        ([*rows, replace(rows[0], reward=float("nan"))], PpoRule(), "missing reward"),
        (rows, PpoRule(kl_weight=0.1), "engine's own"),
        (rows, PpoRule(correction=CORRECTIONS["tis-token"]), "engine's own"),
        ([trajectory([0.0])], PpoRule(), "anchor of its own"),
    ):
        with pytest.raises(RefusedError, match=why):
            annotate(broken, rule)
    known = [replace(one, token_annotations={BEHAVIOR: (None, None, -1.0, -1.0)}) for one in rows]
    with pytest.raises(RefusedError, match="fixed reference"):
        annotate(known, PpoRule(kl_weight=0.1))
    single = replace(row("one", 1, reward=0.0), annotations={TRUNCATED: 1.0})
    with pytest.raises(RefusedError, match="but one"):
        annotate([*rows, single], PpoRule())


class Notes:
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[Now] = []

    def step(self, now: Now) -> None:
        self.told.append(now)

    def wants_halt(self) -> bool:
        return False


def course(windows: int, rule: PpoRule) -> Course:
    """One reply is right, one wrong, to each of four requests."""
    rows = []
    for number in range(8):
        ids = (5, 6 + number // 2, 30 + number % 2, 40, 41)
        mask = (False, False, True, True, True)
        rows.append(Sample(str(number), ids, mask, mask, reward=float(number % 2 == 0), policy_version="v"))
    config = LoopConfig(epochs=4, windows=windows, batch_size=4, optimizer=AdamConfig(learning_rate=3e-3))
    terms, after = {"": PPO.loss(rule)}, {"": lambda some: after_anchor(some, rule)}
    return Course(tuple(annotate(rows, rule)), (), terms, True, None, config, after_anchor=after)


def test_a_run_raises_what_was_right_and_its_critic_lives_on_through_its_windows(tmp_path: Path) -> None:
    backend = LocalBackend(
        load_base(make_tiny_model(tmp_path / "model"), torch.float32, "cpu"), LoraConfig(rank=4, alpha=8)
    )
    notes, rule = Notes(), PpoRule(value_clip=None)
    taken = course(2, rule)
    backend.open(None)
    before = backend.forward(taken.train)
    run_loop(backend, taken, tmp_path / "work", notes)
    after = backend.forward(taken.train)
    moved = [
        sum(b - a for a, b in zip(old, new, strict=True) if a is not None and b is not None)
        for old, new in zip(before, after, strict=True)
    ]
    assert min(moved[::2]) > max(moved[1::2])
    known = [now.metrics["explained_variance"] for now in notes.told if "explained_variance" in now.metrics]
    assert known[0] == pytest.approx(0.0), "the first window's critic had learned nothing"
    assert known[1] > 0.3, "the second one's is the first one's, trained"


def test_a_backend_without_values_is_refused(tmp_path: Path) -> None:
    class Blind(LocalBackend):
        outputs = frozenset({"logprobs"})

    backend = Blind(load_base(make_tiny_model(tmp_path / "model"), torch.float32, "cpu"), LoraConfig(rank=2))
    with pytest.raises(RefusedError, match="no values"):
        run_loop(backend, course(1, PpoRule()), tmp_path / "work", Notes())
