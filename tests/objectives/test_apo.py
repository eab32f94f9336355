from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from rollouts import priced, rollout, slopes

from nightschool.errors import RefusedError, TooLittleDataError
from nightschool.objectives.apo import APO, ApoRule
from nightschool.objectives.oapl import OAPL, OaplRule
from nightschool.valuation.soft_value import closed_form, log_mean_exp


def test_golden_g6b() -> None:
    # V* at beta1 0.5 of 3 successes in 8: 0.5 ln(1 + 3/8 (e^2 - 1)); r = 1, LR = 2: (0.002 - 0.388716)^2 = 0.149549
    value = 0.5 * math.log(1 + 3 / 8 * (math.exp(2) - 1))
    assert value == pytest.approx(0.611284, abs=1e-6)
    assert log_mean_exp([1.0] * 3 + [0.0] * 5, 0.5) == pytest.approx(value, abs=1e-12)
    rule = ApoRule()
    (found,) = APO.annotate([rollout(1.0, p_hat=3 / 8)], rule)
    assert found.annotations["value"] == pytest.approx(value, abs=1e-12)
    loss, logprobs = priced(APO, rule, [rollout(1.0, p_hat=3 / 8)], [[-1.0]], [[-3.0]])
    assert loss.item() * 2 * rule.beta2 == pytest.approx(0.149549, abs=1e-5)
    assert slopes(logprobs) == pytest.approx([1e-3 * 2 - (1 - value)], abs=1e-5)  # up for the success


def test_the_closed_form_of_golden_g6b_from_a_tracker() -> None:
    # v = 0.388889 at beta1 = 1: V = 0.511758, A = 0.488242 or -0.511758
    up, down = APO.annotate([rollout(1.0, p_hat=0.388889), rollout(0.0, p_hat=0.388889)], ApoRule(beta1=1.0))
    assert up.annotations["value"] == pytest.approx(0.511758, abs=1e-6)
    assert up.annotations["advantage"] == pytest.approx(0.488242, abs=1e-6)
    assert down.annotations["advantage"] == pytest.approx(-0.511758, abs=1e-6)


def test_the_mask_test_of_golden_g6a() -> None:
    # policy -0.2 -0.6 | -0.5 | -0.9 -0.3 against -0.3 -0.8 | -0.1 | -1.0 -0.3: LR 0.4 without the tool's token,
    # 0.0 with it; p_hat 0.4 at beta1 1: V 0.523137, A 0.476863, (0.1 * 0.4 - A)^2 = 0.190849
    policy, anchor = np.array([-0.2, -0.6, -0.5, -0.9, -0.3]), np.array([-0.3, -0.8, -0.1, -1.0, -0.3])
    sampled = np.array([True, True, False, True, True])
    assert (policy - anchor)[sampled].sum() == pytest.approx(0.4)
    assert (policy - anchor).sum() == pytest.approx(0.0)
    assert closed_form(0.4, 1.0) == pytest.approx(0.523137, abs=1e-6)
    row = rollout(1.0, 5, p_hat=0.4)
    mask = (False, False, *sampled.tolist())
    row = replace(row, completion_mask=mask, loss_mask=mask)
    rule = ApoRule(beta1=1.0, beta2=0.1)
    loss, _ = priced(APO, rule, [row], [policy[sampled].tolist()], [anchor.tolist()])
    assert loss.item() * 2 * 0.1 == pytest.approx(0.190849, abs=1e-5)


def test_an_offline_value_goes_before_a_success_rate() -> None:
    (found,) = APO.annotate([rollout(0.5, value=0.7, p_hat=0.1)], ApoRule(calibrated=True))
    assert found.annotations["advantage"] == pytest.approx(-0.2)
    with pytest.raises(RefusedError, match="no p_hat"):
        APO.annotate([rollout(1.0)], ApoRule())


def test_what_the_reference_never_solves_is_left_out() -> None:
    kept = APO.annotate([rollout(0.0, name="hard", p_hat=0.0), rollout(1.0, name="fair", p_hat=0.5)], ApoRule())
    assert [sample.id for sample in kept] == ["fair"]
    with pytest.raises(TooLittleDataError, match="nothing to study"):
        APO.annotate([rollout(0.0, p_hat=0.0)], ApoRule())


def test_it_is_the_single_form_with_another_value() -> None:
    # the same V by either way gives the same numbers: V* at beta1 1 is 0.620115 with p 0.5
    value = closed_form(0.5, 1.0)
    (ours,) = APO.annotate([rollout(1.0, p_hat=0.5)], ApoRule(beta1=1.0, beta2=0.25))
    (oapl,) = OAPL.annotate([rollout(1.0, p_hat=value, p_lo=value)], OaplRule(beta=0.25, margin=0.0, floor=-3.0))
    for name in ("value", "advantage", "beta"):
        assert ours.annotations[name] == pytest.approx(oapl.annotations[name], abs=1e-12)
