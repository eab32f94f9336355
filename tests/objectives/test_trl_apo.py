"""A*PO against TRL's own loss code (`A2POTrainer`), on the same tensors.

Known differences, all of them ours by decision:
* Ours is divided by 2 * beta2, so that the gradient at the reference is a policy gradient's.
* TRL draws the offline rollouts and the online one itself; here rows bring a reward and a value.
* TRL takes binary rewards alone; here a calibrated probability of success may stand for one.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from rollouts import priced, rollout, slopes

from nightschool.objectives.apo import APO, ApoRule

POLICY = [[-0.5, -1.0], [-2.0, -0.7, -1.2, -0.3], [-0.9]]
REFERENCE = [[-0.8, -0.9], [-1.7, -0.8, -1.2, -0.8], [-1.1]]
REWARDS, RATES = (1.0, 0.0, 1.0), (3 / 8, 5 / 8, 1 / 8)


def test_loss_and_gradient_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    from trl.experimental.a2po.a2po_trainer import A2POTrainer

    rule = ApoRule(beta1=0.5, beta2=0.05)
    rows = [rollout(reward, len(row), p_hat=rate) for reward, rate, row in zip(REWARDS, RATES, POLICY, strict=True)]
    loss, logprobs = priced(APO, rule, rows, POLICY, REFERENCE, torch.float64)
    # theirs: V* from eight rollouts, as `_estimate_optimal_values` has it
    drawn = torch.tensor([[1.0] * round(8 * rate) + [0.0] * round(8 - 8 * rate) for rate in RATES])
    optimal = 0.5 * (torch.logsumexp(drawn.double() / 0.5, dim=1) - torch.log(torch.tensor(8.0)).double())
    policy = [torch.tensor(row, dtype=torch.float64, requires_grad=True) for row in POLICY]
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True),
        args=SimpleNamespace(beta2=rule.beta2),
        _metrics={"train": defaultdict(list)},
        _get_sequence_logps=lambda *_: torch.stack([row.sum() for row in policy]),
    )
    inputs = {
        "input_ids": None, "attention_mask": None, "logits_to_keep": None, "v_star": optimal,
        "ref_logps": torch.tensor([sum(row) for row in REFERENCE], dtype=torch.float64),
        "rewards": torch.tensor(REWARDS, dtype=torch.float64),
    }  # fmt: skip
    theirs = A2POTrainer.compute_loss(trainer, None, inputs)  # type: ignore[arg-type]
    theirs.backward()
    scale = 2 * rule.beta2
    assert loss.item() * scale == pytest.approx(theirs.item(), abs=1e-7)
    found = [x for row in policy if row.grad is not None for x in row.grad.tolist()]
    assert [x * scale for x in slopes(logprobs)] == pytest.approx(found, abs=1e-7)
