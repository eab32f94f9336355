"""What the loss's minimizer looks like for each baseline, solved here without the product's code.

min over pi of E_b[(beta log(pi/b) - (r - V))^2] has the solution rho = (beta / kappa) W0((kappa / beta)
exp(A / beta)) with kappa chosen so that pi sums to one. The figures are golden G5.6. The product's loss is
then checked to have zero gradient along the simplex at that solution.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import brentq, minimize
from scipy.special import lambertw, logsumexp

from nightschool.training.losses.batch import TokenBatch
from nightschool.training.losses.log_ratio import squared_log_ratio
from nightschool.valuation.soft_value import closed_form

B = np.array([0.1, 0.2, 0.3, 0.4])
R = np.array([1.0, 0.5, 0.0, 0.2])
BETA = 0.25
V_STAR = float(BETA * np.log(B @ np.exp(R / BETA)))


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
    ("v", "ratio", "policy", "reward", "kl", "kl_back", "loss"),
    [
        (V_STAR, 0.0, [0.671742, 0.181821, 0.036910, 0.109527], 0.784558, 0.975296, 1.042936, 0.0),
        (0.28, 0.378408, [0.396834, 0.282525, 0.087640, 0.233001], 0.584697, 0.378408, 0.410810, 0.019109),
        (0.28 - BETA, 1.141200, [0.257210, 0.274187, 0.150243, 0.318360], 0.457975, 0.141200, 0.152923, 0.111194),
    ],
)
def test_minimizers_of_golden_g5_6(
    v: float, ratio: float, policy: list[float], reward: float, kl: float, kl_back: float, loss: float
) -> None:
    assert pytest.approx(0.523824, abs=1e-6) == V_STAR
    pi, found = solve(B, R, v, BETA)
    log_ratio = np.log(pi / B)
    assert found == pytest.approx(ratio, abs=2e-6)
    assert pi.tolist() == pytest.approx(policy, abs=2e-6)
    assert pi @ R == pytest.approx(reward, abs=2e-6)
    assert -(B @ log_ratio) == pytest.approx(kl, abs=2e-6)
    assert pi @ log_ratio == pytest.approx(kl_back, abs=2e-6)
    assert B @ (BETA * log_ratio - (R - v)) ** 2 == pytest.approx(loss, abs=2e-6)
    # two identities: kappa = E_b[A] + beta KL(b||pi) = -E_b[residual]
    assert found * BETA == pytest.approx(B @ (R - v) + BETA * -(B @ log_ratio), abs=1e-9)
    assert found * BETA == pytest.approx(-(B @ (BETA * log_ratio - (R - v))), abs=1e-9)


def test_the_solution_is_the_least_loss_there_is() -> None:
    """Against direct minimization over the simplex from twenty starts."""
    rng = np.random.default_rng(0)
    pi, _ = solve(B, R, 0.28, BETA)

    def price(logits: np.ndarray) -> float:
        return float(B @ (BETA * (logits - logsumexp(logits) - np.log(B)) - (R - 0.28)) ** 2)

    found = [minimize(price, rng.normal(0, 2, 4), method="BFGS", options={"gtol": 1e-10}) for _ in range(20)]
    best = min(found, key=lambda one: one.fun)
    assert best.fun == pytest.approx(price(np.log(pi)), abs=1e-10)
    assert np.exp(best.x - logsumexp(best.x)).tolist() == pytest.approx(pi.tolist(), abs=1e-5)


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


TABLE = {  # golden G5.6, binary rewards, by (p, beta): success after an exact fit (kappa / beta) at mean - c beta
    (0.25, 0.5): [(0.602950, 0.2569), (0.444750, 1.0815), (0.378571, 2.0373)],
    (0.25, 0.25): [(0.770849, 0.6078), (0.611482, 1.2697), (0.503605, 2.1344)],
    (0.5, 0.5): [(0.833221, 0.2936), (0.727735, 1.1163), (0.661684, 2.0552)],
    (0.5, 0.25): [(0.938176, 0.7305), (0.871656, 1.4021), (0.796876, 2.2174)],
    (0.8, 0.25): [(0.992000, 0.4717), (0.980485, 1.3027), (0.960730, 2.1791)],
}


@pytest.mark.parametrize(
    ("p", "beta", "shift", "success", "ratio"),
    [(*key, shift, *row) for key, found in TABLE.items() for shift, row in enumerate(found)],
)
def test_binary_targets_of_golden_g5_6(p: float, beta: float, shift: float, success: float, ratio: float) -> None:
    b = np.array([p, 1 - p])
    pi, found = solve(b, np.array([1.0, 0.0]), p - shift * beta, beta)
    assert pi[0] == pytest.approx(success, abs=2e-6)
    assert found == pytest.approx(ratio, abs=6e-5)
    assert found == pytest.approx(shift - b @ np.log(pi / b), abs=1e-9)  # kappa / beta = c + KL(b||pi)


@pytest.mark.parametrize(
    ("p", "beta", "success"),
    [(0.25, 0.5, 0.711235), (0.25, 0.25, 0.947915), (0.5, 0.5, 0.880797), (0.5, 0.25, 0.982014), (0.8, 0.25, 0.995442)],
)
def test_the_closed_form_is_the_boundary(p: float, beta: float, success: float) -> None:
    """V* loses nothing: kappa is 0, the loss is 0, and the odds are multiplied by e^(1 / beta)."""
    b, r = np.array([p, 1 - p]), np.array([1.0, 0.0])
    pi, found = solve(b, r, closed_form(p, beta), beta)
    assert found == pytest.approx(0.0, abs=1e-9)
    assert pi[0] == pytest.approx(success, abs=2e-6)
    assert pi[0] / pi[1] == pytest.approx(p / (1 - p) * np.exp(1 / beta))
    assert beta * np.log(pi / b) == pytest.approx((r - closed_form(p, beta)).tolist(), abs=1e-9)


@pytest.mark.parametrize(
    ("beta2", "success", "floor", "ratio"),
    [(1.0, 0.475367, 0.0, 0.0), (0.5, 0.653466, 0.007195, None), (0.1, 0.979685, 0.064031, 1.2914)],
)
def test_two_temperatures_are_pessimism(beta2: float, success: float, floor: float, ratio: float | None) -> None:
    """5.1: the group form at beta1 = 1, p = 1/4. Below beta1 the targets are jointly out of reach."""
    b, r = np.array([0.25, 0.75]), np.array([1.0, 0.0])
    pi, found = solve(b, r, closed_form(0.25, 1.0), beta2)
    assert pi[0] == pytest.approx(success, abs=2e-6)
    assert b @ (beta2 * np.log(pi / b) - (r - closed_form(0.25, 1.0))) ** 2 == pytest.approx(floor, abs=1e-6)
    assert ratio is None or found == pytest.approx(ratio, abs=6e-5)


def test_at_the_published_temperatures_only_the_steps_hold_a_policy() -> None:
    # (1, 1e-3): success goes to 1, since A = 0.642626 asks for 643 nats; the failures' share is e^-357, at no loss, and
    # what is left is 0.25 (0.001 ln 4 - 0.642626)^2 = 0.102797
    value = closed_form(0.25, 1.0)
    assert (1 - value) / 1e-3 == pytest.approx(642.626, abs=1e-3)
    assert 0.25 * (1e-3 * np.log(4) - (1 - value)) ** 2 == pytest.approx(0.102797, abs=1e-6)
    assert solve(np.array([0.25, 0.75]), np.array([1.0, 0.0]), value, 0.01)[1] == pytest.approx(15.7191, abs=6e-5)
    # Jensen: the mean advantage is below zero
    assert 0.25 - closed_form(0.25, 1.0) == pytest.approx(-0.1074, abs=5e-5)
    assert 0.5 - closed_form(0.5, 1.0) == pytest.approx(-0.1201, abs=5e-5)


@pytest.mark.parametrize(
    ("p", "gaps"),
    [(0.25, [0.2417, 0.4027, 0.6455]), (0.5, [0.2472, 0.4621, 0.8339]), (0.8, [0.2493, 0.4899, 0.9509])],
)
def test_above_the_boundary_the_solution_is_lost_within_one_beta(p: float, gaps: list[float]) -> None:
    """5.6.2: kappa is least where the best outcome's W0 reaches -1; there E rho = 1 fixes the largest V."""
    for beta, gap in zip((0.25, 0.5, 1.0), gaps, strict=True):
        other = -np.real(lambertw(-np.exp(-1 - 1 / beta)))
        largest = 1 + beta * (1 + np.log(p + (1 - p) * other))
        assert largest - closed_form(p, beta) == pytest.approx(gap, abs=6e-5)
        assert gap < beta


@pytest.mark.parametrize(("v", "share"), [(0.3, 0.167), (0.5, 0.075), (0.7, 0.034), (0.9, 0.015)])
def test_a_value_too_high_empties_the_log(v: float, share: float) -> None:
    # 5.6.2: beta 0.25, logged replies hold 2 % of the mass, half of them good; exact fit multiplies by e^(A / beta)
    assert 0.01 * np.exp((1 - v) / 0.25) + 0.01 * np.exp(-v / 0.25) == pytest.approx(share, abs=6e-4)


def test_who_drew_the_samples_does_not_matter_as_long_as_anchor_and_value_belong_together() -> None:
    """Invariant 5: at pi* = b exp((r - V*) / beta) every residual is 0, whatever weighs the rows; at another value
    the minimizer depends on it."""
    rng = np.random.default_rng(1)
    pi = B * np.exp((R - V_STAR) / BETA)
    shifted, _ = solve(B, R, 0.28, BETA)
    for weights in (B, np.full(4, 0.25), rng.dirichlet(np.ones(4))):
        assert slope(pi, weights, V_STAR).abs().max() < 1e-9
        assert (slope(shifted, weights, 0.28).abs().max() < 1e-8) == (weights is B)


def slope(pi: np.ndarray, weights: np.ndarray, v: float) -> torch.Tensor:
    """The product's gradient by logits at a policy, with rows drawn by `weights`."""
    logits = torch.tensor(np.log(pi), requires_grad=True)
    batch = TokenBatch(
        logits.log_softmax(0),
        torch.arange(4),
        torch.tensor(weights),
        4,
        1,
        {"reference_logprobs": torch.tensor(np.log(B))},
        {"advantage": torch.tensor(R - v), "beta": torch.full((4,), BETA, dtype=torch.float64)},
    )
    squared_log_ratio(batch).backward()
    assert logits.grad is not None
    return logits.grad


def test_kappa_is_read_off_a_held_out_slice_of_the_log() -> None:
    # residuals over draws from b average to -kappa: 200,000 draws, standard error about 0.001
    pi, ratio = solve(B, R, 0.28, BETA)
    drawn = np.random.default_rng(0).choice(4, 200_000, p=B)
    residual = BETA * np.log(pi / B)[drawn] - (R[drawn] - 0.28)
    assert -residual.mean() == pytest.approx(ratio * BETA, abs=0.003)
