from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rollouts import priced, rollout, slopes

from nightschool.errors import RefusedError
from nightschool.objectives.mirror import MIRROR, OPMD, MirrorRule, OpmdRule
from nightschool.objectives.oapl_group import OAPL_GROUP, OaplGroupRule

REWARDS = [1.0, 0.0, 0.0, 0.0]
LOG_RATIOS = [2.0, -1.0, 0.5, 0.0]


def group() -> list:
    return [rollout(reward, name=str(place)) for place, reward in enumerate(REWARDS)]


def test_the_surrogate_of_golden_g6b() -> None:
    # (r - mean r) - tau LR: 0.75 - 0.2, -0.25 + 0.1, -0.25 - 0.05, -0.25; the gradient is minus that over 4 sequences
    coefficients = np.array(REWARDS) - 0.25 - 0.1 * np.array(LOG_RATIOS)
    assert coefficients.tolist() == pytest.approx([0.55, -0.15, -0.30, -0.25])
    _, logprobs = priced(MIRROR, MirrorRule(0.1), group(), [[x] for x in LOG_RATIOS], [[0.0]] * 4)
    assert (np.array(slopes(logprobs)) * -4).tolist() == pytest.approx(coefficients.tolist(), abs=1e-5)


def test_the_published_residual_of_golden_g6b_is_the_group_form_at_one_temperature() -> None:
    # r - tau log Z - tau LR = 1 - 0.861384 - 0.2 = -0.061384, squared 0.003768
    rule = OaplGroupRule(beta1=0.1, beta2=0.1)
    (first, *_) = OAPL_GROUP.annotate(group(), rule)
    residual = first.annotations["advantage"] - 0.1 * LOG_RATIOS[0]
    assert residual == pytest.approx(-0.061384, abs=1e-6)
    assert residual**2 == pytest.approx(0.003768, abs=1e-6)


def test_opmd_of_golden_g6b() -> None:
    # A = 0.75, -0.25 x 3; -(2.25*-1 ...): (0.75*3 - 0.25*(4+5+6)) = 2.25 - 3.75 = -1.5, over 4 and 1 + tau: -0.1875
    loss, logprobs = priced(OPMD, OpmdRule(), group(), [[-3.0], [-4.0], [-5.0], [-6.0]])
    assert loss.item() == pytest.approx(-0.1875, abs=1e-6)
    assert slopes(logprobs) == pytest.approx([-0.75 / 8, *[0.25 / 8] * 3], abs=1e-7)  # up for the success
    # the soft baseline is 0.357374 at tau = 1
    (first, *_) = OPMD.annotate(group(), OpmdRule(soft=True))
    assert first.annotations["advantage"] == pytest.approx(0.642626, abs=1e-6)


def test_opmd_is_the_squared_form_to_first_order() -> None:
    """At the anchor both gradients point the same way, and that of OPMD is 1 / (1 + tau) as long."""
    at_anchor = [[-1.0], [-2.0], [-0.5], [-3.0]]
    _, squared = priced(MIRROR, MirrorRule(1.0), group(), at_anchor, at_anchor)
    _, first = priced(OPMD, OpmdRule(1.0), group(), at_anchor)
    assert [2 * x for x in slopes(first)] == pytest.approx(slopes(squared), abs=1e-7)


@pytest.mark.parametrize(("objective", "rule"), [(MIRROR, MirrorRule()), (OPMD, OpmdRule())])
def test_a_group_of_one_and_mixed_versions_are_refused(objective, rule) -> None:
    with pytest.raises(RefusedError, match="group of one"):
        objective.annotate([rollout(1.0)], rule)
    with pytest.raises(RefusedError, match="in no group"):
        objective.annotate([rollout(1.0, group=None)] * 2, rule)
    with pytest.raises(RefusedError, match="one row of its group"):
        objective.annotate([rollout(1.0, num_rows=2.0)] * 2, rule)
    with pytest.raises(RefusedError, match="one anchor per buffer"):
        objective.annotate([rollout(1.0), replace(rollout(0.0), policy_version="v2")], rule)
