"""What the loss's minimizer looks like for each baseline, solved here without the product's code.

min over pi of E_b[(beta log(pi/b) - (r - V))^2] has the solution rho = (beta / kappa) W0((kappa / beta)
exp(A / beta)) with kappa chosen so that pi sums to one. The figures are golden G5.6. The product's loss is
then checked to have zero gradient along the simplex at that solution.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.special import lambertw

from nightschool.training.losses.batch import TokenBatch
from nightschool.training.losses.log_ratio import squared_log_ratio

B = np.array([0.1, 0.2, 0.3, 0.4])
R = np.array([1.0, 0.5, 0.0, 0.2])
BETA = 0.25
V_STAR = BETA * np.log(B @ np.exp(R / BETA))


def solve(b: np.ndarray, r: np.ndarray, v: float, beta: float) -> tuple[np.ndarray, float]:
    """(pi, kappa / beta) of the minimizer."""

    def rho(ratio: float) -> np.ndarray:
        e = np.exp((r - v) / beta)
        return e if abs(ratio) < 1e-12 else np.real(lambertw(ratio * e)) / ratio

    top = 1.0
    while b @ rho(top) > 1:
        top *= 2
    ratio = 0.0 if abs(b @ rho(0.0) - 1) < 1e-9 else float(brentq(lambda k: b @ rho(k) - 1, 0.0, top, xtol=1e-14))  # type: ignore[arg-type]
    return b * rho(ratio), ratio


@pytest.mark.parametrize(
    ("v", "ratio", "policy", "reward"),
    [
        (V_STAR, 0.0, [0.671742, 0.181821, 0.036910, 0.109527], 0.784558),
        (0.28, 0.378408, [0.396834, 0.282525, 0.087640, 0.233001], 0.584697),
        (0.28 - BETA, 1.141200, [0.257210, 0.274187, 0.150243, 0.318360], 0.457975),
    ],
)
def test_minimizers_of_golden_g5_6(v: float, ratio: float, policy: list[float], reward: float) -> None:
    pi, found = solve(B, R, v, BETA)
    assert found == pytest.approx(ratio, abs=2e-6)
    assert pi.tolist() == pytest.approx(policy, abs=2e-6)
    assert pi @ R == pytest.approx(reward, abs=2e-6)
    # two identities: kappa = E_b[A] + beta KL(b||pi) = -E_b[residual]
    log_ratio = np.log(pi / B)
    assert found * BETA == pytest.approx(B @ (R - v) + BETA * -(B @ log_ratio), abs=1e-9)
    assert found * BETA == pytest.approx(-(B @ (BETA * log_ratio - (R - v))), abs=1e-9)


@pytest.mark.parametrize("v", [V_STAR, 0.28, 0.28 - BETA])
def test_the_loss_is_stationary_at_its_minimizer(v: float) -> None:
    pi, _ = solve(B, R, v, BETA)
    logits = torch.tensor(np.log(pi), requires_grad=True)
    batch = TokenBatch(
        logits.log_softmax(0),
        torch.arange(4),
        torch.tensor(B),
        4,
        1,
        {"reference_logprobs": torch.tensor(np.log(B))},
        {"advantage": torch.tensor(R - v), "beta": torch.full((4,), BETA, dtype=torch.float64)},
    )
    loss = squared_log_ratio(batch)
    loss.backward()
    assert logits.grad is not None
    assert logits.grad.abs().max() < 1e-8
    if v == V_STAR:
        assert loss.item() < 1e-12


@pytest.mark.parametrize(
    ("p", "beta", "shift", "success", "ratio"),
    [  # golden G5.6, binary rewards: success probability after an exact fit, kappa / beta
        (0.25, 0.5, 0, 0.602950, 0.2569),
        (0.25, 0.5, 1, 0.444750, 1.0815),
        (0.25, 0.25, 1, 0.611482, 1.2697),
        (0.5, 0.5, 1, 0.727735, 1.1163),
        (0.5, 0.25, 0, 0.938176, 0.7305),
        (0.5, 0.25, 2, 0.796876, 2.2174),
        (0.8, 0.25, 1, 0.980485, 1.3027),
    ],
)
def test_binary_targets_of_golden_g5_6(p: float, beta: float, shift: float, success: float, ratio: float) -> None:
    b = np.array([p, 1 - p])
    pi, found = solve(b, np.array([1.0, 0.0]), p - shift * beta, beta)
    assert pi[0] == pytest.approx(success, abs=2e-6)
    assert found == pytest.approx(ratio, abs=6e-5)
    assert found == pytest.approx(shift - b @ np.log(pi / b), abs=1e-9)  # kappa / beta = c + KL(b||pi)


def test_kappa_is_read_off_a_held_out_slice_of_the_log() -> None:
    # residuals over draws from b average to -kappa: 200,000 draws, standard error about 0.001
    pi, ratio = solve(B, R, 0.28, BETA)
    drawn = np.random.default_rng(0).choice(4, 200_000, p=B)
    residual = BETA * np.log(pi / B)[drawn] - (R[drawn] - 0.28)
    assert -residual.mean() == pytest.approx(ratio * BETA, abs=0.003)
