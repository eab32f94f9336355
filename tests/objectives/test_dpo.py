from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from loss_batches import agrees_with_finite_differences, batch_of, slopes

from nightschool.errors import InputError, RefusedError
from nightschool.objectives.dpo import DPO, DpoRule, annotate
from nightschool.training.losses.batch import TokenBatch
from nightschool.training.losses.preference import dpo, ipo
from nightschool.types import Sample


def golden(**changes: Any) -> TokenBatch:
    """G2: policy / reference, preferred -10 / -12, the other -14 / -13: h = 2 - (-1) = 3."""
    logprobs = torch.tensor([-14.0, -10.0], requires_grad=True)
    given = {"reference_logprobs": torch.tensor([-13.0, -12.0])}
    notes = {"preferred": torch.tensor([0.0, 1.0])}
    batch = TokenBatch(logprobs, torch.tensor([0, 1]), torch.ones(2), 2, 2, given, notes, torch.tensor([0, 0]))
    return replace(batch, **changes)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, 0.554355), ({"smoothing": 0.1}, 0.584355), ({"noise": 0.1}, 0.516855), ({"sft_weight": 0.1}, 1.554355)],
)
def test_golden_g2(settings: dict[str, float], expected: float) -> None:
    assert dpo(golden(), 0.1, **settings).item() == pytest.approx(expected, abs=1e-5)


def test_ipo_of_golden_g2() -> None:
    assert ipo(golden(), 0.1).item() == pytest.approx(4.0, abs=1e-5)  # (3 - 1 / (2 * 0.1))^2


def test_ipo_is_told_per_token_and_pulls_back_what_exceeds_its_margin() -> None:
    # beta 0.25 asks for a margin of 2 per token; [3, 3] against [0]: the mean 3 exceeds it by 1
    batch = batch_of([[-1.0, -1.0], [-2.0]], [[-4.0, -4.0], [-2.0]], [0, 0], preferred=[1.0, 0.0])
    loss = ipo(batch, 0.25)
    assert loss.item() == pytest.approx(1.0)
    assert slopes(loss, batch) == pytest.approx([1.0, 1.0, -2.0])  # 2 * 1 * (1/2, 1/2, -1): down for the preferred
    assert agrees_with_finite_differences(ipo, batch)
    assert agrees_with_finite_differences(dpo, batch)


def test_robust_dpo_is_unbiased() -> None:
    """A share of 0.1 told the wrong way round: its mean over both tellings is the loss of the true one."""
    right = dpo(golden(), 0.1, noise=0.1).item()
    wrong = dpo(golden(annotations={"preferred": torch.tensor([1.0, 0.0])}), 0.1, noise=0.1).item()
    assert 0.9 * right + 0.1 * wrong == pytest.approx(0.554355, abs=1e-5)


def test_dpo_at_the_ends() -> None:
    far = batch_of([[-1.0], [-2001.0]], [[-1.0], [-1.0]], [0, 0], preferred=[1.0, 0.0])
    assert dpo(far).item() == pytest.approx(0, abs=1e-6)
    assert slopes(dpo(far), far) == pytest.approx([0, 0], abs=1e-9)
    back = replace(far, annotations={"preferred": torch.tensor([0.0, 1.0])})
    assert dpo(back).item() == pytest.approx(200.0)  # beta h = -200
    assert slopes(dpo(back), back) == pytest.approx([0.1, -0.1])


def test_a_rule_has_one_form() -> None:
    pair = [row("a", (1, 2, 3), "p", 1.0), row("b", (1, 2, 4), "p", 0.0)]
    for rule in (DpoRule(noise=0.1, smoothing=0.1), DpoRule(squared=True, sft_weight=0.1)):
        with pytest.raises(RefusedError, match="one form"):
            annotate(pair, rule)
    assert DPO.loss(DpoRule(squared=True)).name == "ipo"


def test_a_gap_of_one_of_golden_g8a() -> None:
    # Bradley-Terry: sigma(1) = 0.731059, -log of it 0.313262; beta h = 1 at beta 1/3
    assert 1 / (1 + math.exp(-1)) == pytest.approx(0.731059, abs=1e-6)
    assert dpo(golden(), 1 / 3).item() == pytest.approx(0.313262, abs=1e-5)


def test_the_gradient_of_golden_g2() -> None:
    batch = golden()
    dpo(batch, 0.1).backward()
    assert batch.logprobs.grad is not None
    assert batch.logprobs.grad.tolist() == pytest.approx([0.042556, -0.042556], abs=1e-6)  # up for the preferred


def test_a_pair_has_two_sides_and_one_better() -> None:
    with pytest.raises(InputError, match="group of two"):
        dpo(golden(groups=torch.tensor([0, 1])))
    with pytest.raises(InputError, match="preferred"):
        dpo(golden(annotations={"preferred": torch.tensor([1.0, 1.0])}))


def row(name: str, ids: tuple[int, ...], group: str | None, preferred: float) -> Sample:
    mask = (False, False, *(True for _ in ids[2:]))
    return Sample(name, ids, mask, mask, group_id=group, annotations={"preferred": preferred})


def test_what_is_no_pair_is_refused() -> None:
    better, worse = row("a", (1, 2, 3), "p", 1.0), row("b", (1, 2, 4), "p", 0.0)
    assert annotate([better, worse], DpoRule()) == [better, worse]
    for broken, rule in (
        ([better], "in pairs"),
        ([better, replace(worse, group_id=None)], "in pairs"),
        ([better, replace(worse, annotations={"preferred": 1.0})], "one better"),
        ([better, row("b", (1, 9, 4), "p", 0.0)], "one request"),
    ):
        with pytest.raises(RefusedError, match=rule):
            annotate(broken, DpoRule())
    with pytest.raises(RefusedError, match="one half"):
        annotate([better, worse], DpoRule(noise=0.5))
    assert DPO.loss(DpoRule(beta=0.3)).settings["beta"] == 0.3
