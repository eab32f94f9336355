from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from nightschool.errors import InputError, RefusedError
from nightschool.objectives.dpo import DPO, DpoRule, annotate
from nightschool.training.losses.batch import TokenBatch
from nightschool.training.losses.preference import dpo
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
